"""Reads a model's files in Hugging Face's format; never runs its code or unpickles anything."""

from __future__ import annotations

import json
import pickle  # nosec B403 # only the name of an error
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLE_FILE = "pytorch_model.bin"
PICKLE_INDEX = "pytorch_model.bin.index.json"
MAX_BYTES = 256 * 1024 * 1024  # of one file other than weights
LONGEST = 300  # characters of a cause
MISSING = "models of Hugging Face's format need transformers: pip install 'torchlane[huggingface]'"

Weights = dict[str, torch.Tensor]


class FolderError(Exception):
    """The folder cannot be used; the message gives the reason and the fix."""


def cause(error: BaseException) -> str:
    """Return an error of third-party code in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 4]} ..."


class ModelFolder:
    """The files of one model.

    Rejects links that lead out of the folder, except into the `blobs` of Hugging Face's cache.

    Args:
        path: of the folder.

    Raises:
        FolderError: if there is no such folder.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise FolderError(f"{path} is not a folder")
        self.name = path.resolve().name
        self.path = path
        self._roots = [path.resolve()]
        if path.resolve().parent.name == "snapshots":
            self._roots.append(path.resolve().parent.parent / "blobs")

    def read(self, name: str) -> bytes | None:
        """Return the bytes of a file; None: there is none.

        Raises:
            FolderError: if it leads out of the folder, is too large or cannot be read.
        """
        file = self._file(name)
        if file is None:
            return None
        try:
            if (size := file.stat().st_size) > MAX_BYTES:
                raise FolderError(f"{name} has {size:,} bytes; at most {MAX_BYTES:,} are read")
            return file.read_bytes()
        except OSError as error:
            raise FolderError(f"cannot read {name}: {error.strerror}") from error

    def json(self, name: str) -> Any:
        """Return the content of a JSON file; None: there is none.

        Raises:
            FolderError: see `read`; also if it is not JSON.
        """
        data = self.read(name)
        if data is None:
            return None
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise FolderError(f"{name} is not JSON: {cause(error)}") from error

    def fields(self, name: str) -> Mapping[str, Any]:
        """Return the content of a file with a JSON object; empty: there is none.

        Raises:
            FolderError: see `json`; also if it has anything else.
        """
        content = self.json(name)
        if content is None:
            return {}
        if not isinstance(content, dict):
            raise FolderError(f"{name} has a {type(content).__name__} instead of an object")
        return content

    def weights(self, below: str = "", *, allow_pickle: bool = False) -> Weights:
        """Return all weights, from one safetensors file, or from several with an index.

        Args:
            below: the subfolder with the files, with a slash at its end.
            allow_pickle: without safetensors, read pytorch_model.bin by
                `torch.load(weights_only=True)`.

        Raises:
            FolderError: if there are none or only pickled ones, or they cannot be read.
        """
        if self._file(below + INDEX) is not None:
            weights: Weights = {}
            shards = self.fields(below + INDEX).get("weight_map")
            if not isinstance(shards, dict) or not all(isinstance(s, str) for s in shards.values()):
                raise FolderError(f"{INDEX} has no weight_map of file names")
            for shard in sorted(set(shards.values())):
                weights |= self._safetensors(below + shard)
            return weights
        if self._file(below + WEIGHTS) is not None:
            return self._safetensors(below + WEIGHTS)
        pickle_file = self._file(below + PICKLE_FILE)
        if pickle_file is None:
            if self._file(below + PICKLE_INDEX) is not None:
                raise FolderError(
                    f"{below}{PICKLE_INDEX}: pickled weights in several files are not supported; "
                    "save the model as safetensors (model.save_pretrained(FOLDER))"
                )
            raise FolderError(f"there is no {below}{WEIGHTS}")
        if not allow_pickle:
            raise FolderError(
                f"{below}{PICKLE_FILE} is pickled, and a pickle can run any code: save the model "
                "as safetensors (model.save_pretrained(FOLDER)), or give --allow-pickle to read it "
                "by torch.load(weights_only=True)"
            )
        return _load_pickle(pickle_file)

    def _file(self, name: str) -> Path | None:
        try:
            real = (self.path / name).resolve()
            is_file = real.is_file()
        except (OSError, RuntimeError, ValueError) as error:  # too long, a loop of links, a NUL
            raise FolderError(f"the path {name[:99]!r} is malformed") from error
        if not any(real.is_relative_to(root) for root in self._roots):
            raise FolderError(f"{name} leads out of the folder: put the file itself there")
        return real if is_file else None

    def _safetensors(self, name: str) -> Weights:
        try:
            from safetensors import SafetensorError  # noqa: PLC0415 - an extra
            from safetensors.torch import load_file  # noqa: PLC0415
        except ImportError as error:
            raise FolderError(MISSING) from error
        file = self._file(name)
        if file is None:
            raise FolderError(f"{INDEX} names {name}, which does not exist")
        try:
            return load_file(file)
        except (SafetensorError, OSError) as error:
            raise FolderError(f"{name} is not safetensors: {cause(error)}") from error


def _load_pickle(file: Path) -> Weights:
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, EOFError, OSError, RuntimeError) as error:
        raise FolderError(f"{file.name} has more than weights: {cause(error)}") from error
    if not isinstance(state, dict) or not all(
        isinstance(each, torch.Tensor) for each in state.values()
    ):
        raise FolderError(f"{file.name} is not a state_dict: name -> tensor")
    return state
