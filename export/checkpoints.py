"""Reads what `torchlane train` wrote beside the weights, without Lightning."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from export.errors import UsageError
from export.reading import weights
from models.manifest import TrainingRun

BEST, LAST = "best.ckpt", "last.ckpt"
KEY = "torchlane"  # our part of a checkpoint
PREFIX = "module."  # before the name of each weight: the trainer wraps the model in a module


def read(file: Path, model: str) -> Mapping[str, Any]:
    """Read a checkpoint of a run of this model; runs no code in it.

    Raises:
        UsageError: if it cannot be read, belongs to another model, or is of another program.
    """
    content = weights.read(file)
    if run_of(content, file, model) is None:
        raise UsageError(f"{file} was not written by `torchlane train`")
    return content


def run_of(content: Mapping[str, Any], file: Path, model: str) -> TrainingRun | None:
    """Return the record of the run in a checkpoint; None: it is of another program.

    Raises:
        UsageError: if it belongs to another model.
    """
    own = content.get(KEY)
    if not isinstance(own, dict):
        return None
    if own.get("model") != model:
        raise UsageError(f"{file} belongs to {own.get('model')!r}, not to {model!r}")
    try:
        return TrainingRun.model_validate(own.get("run"))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise UsageError(f"{file}: the record of its run is wrong: {first['msg']}") from error
