"""Pictures and sounds: one row per file, read when it is decoded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from app.bulk.blocks import Columns
from app.bulk.columns import ID, INPUT


@dataclass(frozen=True, slots=True)
class PathsChunk:
    """Names of files, and their ids."""

    paths: tuple[Path, ...]
    ids: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def cut(self, start: int, stop: int) -> Self:
        return type(self)(self.paths[start:stop], self.ids[start:stop])

    def join(self, others: Sequence[Self]) -> Self:
        paths = self.paths + tuple(path for each in others for path in each.paths)
        return type(self)(paths, self.ids + tuple(one for each in others for one in each.ids))

    def columns(self) -> Columns:
        return Columns({INPUT: self.paths, ID: self.ids})

    def add_to(self, digest: hashlib._Hash) -> None:
        """Do nothing: files are not a stream."""


class PathSource:
    """See `Source`."""

    is_stream = False
    integer_ids = False
    has_numbers = False
    row_bytes = 0

    def __init__(self, files: Sequence[Path], ids: Sequence[str]) -> None:
        self._files = tuple(files)
        self._ids = tuple(ids)
        self.extra_columns: Mapping[str, Any] = {}
        self.total: int | None = len(files)

    def chunks(self, first: int, rows: int) -> Iterator[PathsChunk]:
        for start in range(first, len(self._files), rows):
            stop = start + rows
            yield PathsChunk(self._files[start:stop], self._ids[start:stop])
