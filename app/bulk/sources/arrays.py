"""Rows of .npy files, counted by the first axis. A block maps only what it reads."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from app.bulk.blocks import Columns
from app.bulk.columns import INPUT
from app.bulk.errors import BulkError
from app.codecs.values import misshapen
from app.types import Array
from models.manifest import Manifest


@dataclass(frozen=True, slots=True)
class ArrayChunk:
    """Parts of files: path, first row, row after the last."""

    parts: tuple[tuple[Path, int, int], ...]

    def __len__(self) -> int:
        return sum(stop - start for _, start, stop in self.parts)

    def cut(self, start: int, stop: int) -> Self:
        parts = []
        for path, first, end in self.parts:
            low, high = max(first, first + start), min(end, first + stop)
            if low < high:
                parts.append((path, low, high))
            start, stop = start - (end - first), stop - (end - first)
        return type(self)(tuple(parts))

    def join(self, others: Sequence[Self]) -> Self:
        return type(self)(self.parts + tuple(part for each in others for part in each.parts))

    def columns(self) -> Columns:
        arrays = [np.array(_map(path)[start:stop]) for path, start, stop in self.parts]
        return Columns({INPUT: arrays[0] if len(arrays) == 1 else np.concatenate(arrays)})

    def add_to(self, digest: hashlib._Hash) -> None:
        """Do nothing: files are not a stream."""


class ArraySource:
    """See `Source`.

    Args:
        manifest: the manifest of the model, which must have one input.

    Raises:
        BulkError: if a file is damaged, or its rows do not fit the model.
    """

    is_stream = False
    integer_ids = True
    has_numbers = True
    row_bytes = 0

    def __init__(self, files: Sequence[Path], manifest: Manifest) -> None:
        if len(manifest.inputs) > 1:
            names = ", ".join(spec.name for spec in manifest.inputs)
            raise BulkError(
                f"{files[0]} has one array, but the model has the inputs {names}: use Parquet with "
                "a column for each"
            )
        (spec,) = manifest.inputs
        self._files = []
        for path in files:
            array = _map(path)
            if array.ndim == 0 or array.dtype.kind not in "fiub":
                raise BulkError(
                    f"{path} has {array.dtype}{list(array.shape)}: expected numbers, whose first "
                    "axis counts rows"
                )
            shape = array.shape[1:]
            if not spec.takes(shape) and shape != (int(np.prod(spec.item_shape)),):
                raise BulkError(f"{path}: {misshapen(spec, shape)}")
            self._files.append((path, len(array)))
        self.extra_columns: Mapping[str, Any] = {}
        self.total: int | None = sum(count for _, count in self._files)

    def chunks(self, first: int, rows: int) -> Iterator[ArrayChunk]:
        for path, count in self._files:
            for start in range(first, count, rows):
                yield ArrayChunk(((path, start, min(start + rows, count)),))
            first = max(0, first - count)


def _map(path: Path) -> Array:
    try:
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise BulkError(f"{path} cannot be read as .npy: {error}") from error
    if not isinstance(array, np.ndarray):
        raise BulkError(f"{path} has several arrays (.npz): save each as .npy")
    return array
