"""Rows of JSON Lines: from files, or as a stream from standard input."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Self

import orjson

from app.bulk.blocks import Columns
from app.bulk.columns import ID, INPUT, Chooser, Wanted, listed
from app.bulk.errors import BulkError
from app.codecs.missing import nan_as_null
from models.byte_order import strip_byte_order_mark

CHUNK_BYTES = 8 << 20  # of lines, if they are long
MAX_LINE_BYTES = 256 << 20
LOOKED_AT = 100  # lines examined before the model is loaded
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
TOO_LONG = b""  # replaces a line; empty lines are left out


@dataclass(frozen=True, slots=True)
class LinesChunk:
    """Lines as read, which are parsed when they are decoded."""

    lines: list[bytes]
    chooser: Chooser

    def __len__(self) -> int:
        return len(self.lines)

    def cut(self, start: int, stop: int) -> Self:
        return type(self)(self.lines[start:stop], self.chooser)

    def joined(self, others: Sequence[Self]) -> Self:
        lines = self.lines + [line for each in others for line in each.lines]
        return type(self)(lines, self.chooser)

    def columns(self) -> Columns:
        """See `Chunk`. Each line has its own columns."""
        items: list[object] = [None] * len(self.lines)
        ids = items.copy()
        broken: dict[int, str] = {}
        chooser = replace(self.chooser, id=None)  # a line may have no id
        chosen: dict[tuple[str, ...], Wanted] = {}
        nan = chooser.takes_nan
        for row, line in enumerate(self.lines):
            try:
                found = _parsed(line, nan=nan)
                ids[row] = _id(found.get(self.chooser.id or ID))
                names = tuple(found)
                if names not in chosen:
                    chosen[names] = chooser.choose(names, "the line", sparse=True)
                items[row] = chosen[names].item_of(found)
            except BulkError as error:
                broken[row] = str(error)
        return Columns({INPUT: items, ID: ids}, broken)

    def add_to(self, digest: hashlib._Hash) -> None:
        for line in self.lines:
            digest.update(line)
            digest.update(b"\n")


class LinesSource:
    """Rows of JSON Lines, without empty lines; see `Source`.

    Args:
        files: files in order; empty to read standard input.
        chooser: chooses the columns of each line.
        stream: standard input.

    Raises:
        BulkError: if no line at the beginning of the files can be scored, or an input that may be
            missing is missing in all of them.
    """

    integer_ids = False
    has_numbers = False
    total: int | None = None

    def __init__(self, files: Sequence[Path], chooser: Chooser, stream: BinaryIO) -> None:
        self._files = files
        self._chooser = chooser
        self._stream = stream
        self.kept: Mapping[str, Any] = {}
        self.is_stream = not files
        self.row_bytes = 0
        if files:
            self._look()

    def chunks(self, first: int, rows: int) -> Iterator[LinesChunk]:
        kept: list[bytes] = []
        size = 0
        for line in islice(self._lines(), first, None):
            kept.append(line)
            size += len(line)
            if len(kept) >= rows or size >= CHUNK_BYTES:
                yield LinesChunk(kept, self._chooser)
                kept, size = [], 0
        if kept:
            yield LinesChunk(kept, self._chooser)

    def _look(self) -> None:
        """Reject files of another kind, or a wrong column name, before all rows become bad."""
        problem: BulkError | None = None
        is_right = False
        lacking, others = set[str](), dict[str, None]()  # inputs, and keys
        for line in islice(self._lines(), LOOKED_AT):
            self.row_bytes = max(self.row_bytes, len(line))
            if is_right and not lacking:
                continue
            try:
                found = _parsed(line, nan=self._chooser.takes_nan)
                wanted = self._chooser.choose(tuple(found), "the line", sparse=True)
            except BulkError as error:
                problem = problem or error
                continue
            if not is_right and wanted.item is None:
                lacking |= self._chooser.optional
            is_right = True
            lacking -= set(found)
            others.update(dict.fromkeys(name for name in found if name not in wanted.names))
        if lacking:
            raise BulkError(
                f"{self._files[0]}: none of the first {LOOKED_AT} lines has "
                f"{listed(sorted(lacking))}; other keys are {listed([*others])}: rename one, or "
                "write null where a number is missing"
            )
        if problem is not None and not is_right:
            raise BulkError(
                f"{self._files[0]}: the first {LOOKED_AT} lines cannot be scored; the first error: "
                f"{problem}"
            )

    def _lines(self) -> Iterator[bytes]:
        for file in self._opened():
            with file as opened:
                yield from _lines(opened)

    def _opened(self) -> Iterator[AbstractContextManager[Any]]:
        if not self._files:
            yield nullcontext(self._stream)
        for path in self._files:
            try:
                yield path.open("rb")
            except OSError as error:
                raise BulkError(f"{path} cannot be read: {error.strerror}") from error


def _parsed(line: bytes, *, nan: bool) -> dict[str, object]:
    if line == TOO_LONG:
        raise BulkError(f"the line has more than {MAX_LINE_BYTES} bytes")
    try:
        text = strip_byte_order_mark(line)
        parsed = orjson.loads(nan_as_null(text) if nan else text)
    except ValueError as error:
        raise BulkError(f"the line is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise BulkError("the line is not a JSON object")
    return parsed


def _id(value: object) -> object:
    if isinstance(value, str | int | None) and not isinstance(value, bool):
        return value
    raise BulkError("the id must be a whole number or a text")


def _lines(file: io.BufferedIOBase) -> Iterator[bytes]:
    mark = BYTE_ORDER_MARK
    while line := file.readline(MAX_LINE_BYTES):
        if len(line) >= MAX_LINE_BYTES:
            while line and not line.endswith(b"\n"):
                line = file.readline(CHUNK_BYTES)
            yield TOO_LONG
        elif stripped := line.removeprefix(mark).strip():
            yield stripped
        mark = b""
