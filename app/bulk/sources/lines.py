"""Rows of JSON Lines: from files, or as a stream from standard input."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

import orjson

from app.bulk.blocks import Columns
from app.bulk.columns import Chooser, Wanted
from app.bulk.errors import BulkError

CHUNK_BYTES = 8 << 20  # of lines, if they are long
MAX_LINE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class LinesChunk:
    """Lines as they were read; they are parsed where they are decoded."""

    lines: list[bytes]
    wanted: Wanted

    def __len__(self) -> int:
        return len(self.lines)

    def cut(self, start: int, stop: int) -> Self:
        """See `Chunk`."""
        return type(self)(self.lines[start:stop], self.wanted)

    def joined(self, others: Sequence[Self]) -> Self:
        """See `Chunk`."""
        lines = self.lines + [line for each in others for line in each.lines]
        return type(self)(lines, self.wanted)

    def columns(self) -> Columns:
        """See `Chunk`."""
        names = self.wanted.names
        values: dict[str, list[object]] = {name: [None] * len(self.lines) for name in names}
        broken: dict[int, str] = {}
        for row, line in enumerate(self.lines):
            try:
                parsed = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                broken[row] = f"the line is not JSON: {error}"
                continue
            if not isinstance(parsed, dict):
                broken[row] = "the line is not a JSON object"
                continue
            missing = [name for name in names if name not in parsed]
            for name in names:
                values[name][row] = parsed.get(name)
            if missing:
                shown = ", ".join(map(repr, list(parsed)[:20])) or "nothing"
                broken[row] = f"the line has no {missing[0]!r}; it has {shown}"
        return Columns(values, broken)

    def add_to(self, digest: hashlib._Hash) -> None:
        """See `Chunk`."""
        for line in self.lines:
            digest.update(line)
            digest.update(b"\n")


class LinesSource:
    """Rows of JSON Lines, empty lines left out; see `Source`.

    Args:
        files: in order; empty: standard input.
        chooser: chooses the columns by the first row.
        stream: standard input.
    """

    integer_ids = False
    has_numbers = False
    total: int | None = None

    def __init__(self, files: Sequence[Path], chooser: Chooser, stream: BinaryIO) -> None:
        self._files = files
        self._chooser = chooser
        self._stream = stream
        self.is_stream = not files
        self._wanted: Wanted | None = None
        if files and (first := next(self.chunks(0, 1), None)) is not None:
            self._wanted = first.wanted

    def chunks(self, first: int, rows: int) -> Iterator[LinesChunk]:
        """See `Source`."""
        kept: list[bytes] = []
        size = 0
        for file in self._opened():
            with file as opened:
                for line in _lines(opened):
                    if first > 0:
                        first -= 1
                        continue
                    wanted = self._wanted or self._choose(line)
                    kept.append(line)
                    size += len(line)
                    if len(kept) >= rows or size >= CHUNK_BYTES:
                        yield LinesChunk(kept, wanted)
                        kept, size = [], 0
        if kept and self._wanted is not None:
            yield LinesChunk(kept, self._wanted)

    def _choose(self, line: bytes) -> Wanted:
        where = str(self._files[0]) if self._files else "standard input"
        try:
            parsed = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise BulkError(f"the first line of {where} is not JSON: {error}") from error
        if not isinstance(parsed, dict):
            raise BulkError(f'the first line of {where} is no object, such as {{"input": ...}}')
        self._wanted = self._chooser.choose(list(parsed), f"the first line of {where}")
        return self._wanted

    def _opened(self) -> Iterator[AbstractContextManager[Any]]:
        if not self._files:
            yield nullcontext(self._stream)
        for path in self._files:
            try:
                yield path.open("rb")
            except OSError as error:
                raise BulkError(f"{path} cannot be read: {error.strerror}") from error


def _lines(file: io.BufferedIOBase) -> Iterator[bytes]:
    while line := file.readline(MAX_LINE_BYTES):
        if len(line) >= MAX_LINE_BYTES:
            raise BulkError(f"a line has more than {MAX_LINE_BYTES} bytes")
        if stripped := line.strip():
            yield stripped
