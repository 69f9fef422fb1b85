"""Reads a checkpoint's weights and the record of its run, without Lightning."""

from __future__ import annotations

import pickle  # nosec B403 # only the name of an error
import warnings
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import nn

from export.errors import UsageError, reason
from models.manifest import TrainingRun

BEST, LAST = "best.ckpt", "last.ckpt"
KEY = "torchlane"  # our part of a checkpoint
PREFIX = "module."  # before the name of each weight: the trainer wraps the model in a module


def read(file: Path, model: str) -> dict[str, Any]:
    """Read a checkpoint of a run of this model.

    Runs no code in it: only tensors and plain data are unpickled.

    Raises:
        UsageError: if it cannot be read, or belongs to another model.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about other kinds of files
            found = torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from error
    except pickle.UnpicklingError as error:
        raise UsageError(f"{file} has more than tensors and plain data, or is damaged") from error
    except Exception as error:  # damaged bytes make torch raise errors of many classes
        raise UsageError(f"{file} is not a checkpoint, or is damaged") from error
    if not isinstance(found, dict) or not isinstance(found.get(KEY), dict):
        raise UsageError(f"{file} was not written by `python -m export train`")
    if found[KEY].get("model") != model:
        raise UsageError(f"{file} belongs to {found[KEY].get('model')!r}, not to {model!r}")
    _run(file, found)
    return found


def _run(file: Path, found: dict[str, Any]) -> TrainingRun:
    try:
        return TrainingRun.model_validate(found[KEY].get("run"))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise UsageError(f"{file}: the record of its run is wrong: {first['msg']}") from error


def load(file: Path, model: str, module: nn.Module) -> TrainingRun:
    """Load the weights of a run into a module; return the record of the run.

    Raises:
        UsageError: if the file does not belong to this model.
    """
    found = read(file, model)
    try:
        weights = {name.removeprefix(PREFIX): each for name, each in found["state_dict"].items()}
        module.load_state_dict(weights)
        return _run(file, found)
    except (RuntimeError, LookupError, TypeError, AttributeError) as error:
        raise UsageError(f"{file} does not fit the model: {reason(error)}") from error
