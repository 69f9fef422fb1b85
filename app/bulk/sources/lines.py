"""Rows of JSON Lines: from files, or as a stream from standard input."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Self

import orjson

from app.bulk.blocks import Columns
from app.bulk.columns import ID, INPUT, ColumnChoice, ColumnChooser, list_names
from app.bulk.errors import BulkError
from app.codecs.missing import nan_as_null
from app.errors import InvalidInput
from models.system.byte_order import strip_byte_order_mark

CHUNK_BYTES = 8 << 20  # of lines, if they are long
MAX_LINE_BYTES = 256 << 20
SAMPLED_LINES = 100  # lines examined before the model is loaded
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
TOO_LONG = b""  # replaces a line; empty lines are left out


@dataclass(frozen=True, slots=True)
class LinesChunk:
    """Lines as read, which are parsed when they are decoded."""

    lines: list[bytes]
    chooser: ColumnChooser

    def __len__(self) -> int:
        return len(self.lines)

    def cut(self, start: int, stop: int) -> Self:
        return type(self)(self.lines[start:stop], self.chooser)

    def join(self, others: Sequence[Self]) -> Self:
        lines = self.lines + [line for each in others for line in each.lines]
        return type(self)(lines, self.chooser)

    def columns(self) -> Columns:
        """See `Chunk`. Each line has its own columns."""
        items: list[object] = [None] * len(self.lines)
        ids = items.copy()
        errors: dict[int, str] = {}
        chooser = self.chooser.without_id()  # a line may have no id
        choices: dict[tuple[str, ...], ColumnChoice] = {}
        nan = chooser.takes_nan
        for row, line in enumerate(self.lines):
            try:
                row_fields = _parse(line, nan=nan)
                ids[row] = _id(row_fields.get(self.chooser.id or ID))
                names = tuple(row_fields)
                if names not in choices:
                    choices[names] = chooser.choose(names, "the line", sparse=True)
                items[row] = choices[names].item_of(row_fields)
            except (BulkError, InvalidInput) as error:
                errors[row] = str(error)
        return Columns({INPUT: items, ID: ids}, errors)

    def add_to(self, digest: hashlib._Hash) -> None:
        for line in self.lines:
            digest.update(line)
            digest.update(b"\n")


class LinesSource:
    """Rows of JSON Lines, without empty lines; see `Source`.

    Args:
        files: files in order; empty to read standard input.

    Raises:
        BulkError: if no line at the beginning of the files can be scored, or an input that may be
            missing is missing in all of them.
    """

    integer_ids = False
    has_numbers = False
    total: int | None = None

    def __init__(self, files: Sequence[Path], chooser: ColumnChooser, stream: BinaryIO) -> None:
        self._files = files
        self._chooser = chooser
        self._stream = stream
        self.extra_columns: Mapping[str, Any] = {}
        self.is_stream = not files
        self.row_bytes = 0
        if files:
            self._look()

    def chunks(self, first: int, rows: int) -> Iterator[LinesChunk]:
        chunk: list[bytes] = []
        size = 0
        for line in islice(self._lines(), first, None):
            chunk.append(line)
            size += len(line)
            if len(chunk) >= rows or size >= CHUNK_BYTES:
                yield LinesChunk(chunk, self._chooser)
                chunk, size = [], 0
        if chunk:
            yield LinesChunk(chunk, self._chooser)

    def _look(self) -> None:
        """Reject files of another kind, or a wrong column name, before all rows become bad."""
        problem: BulkError | None = None
        is_right = False
        lacking, others = set[str](), dict[str, None]()  # inputs, and keys
        for line in islice(self._lines(), SAMPLED_LINES):
            self.row_bytes = max(self.row_bytes, len(line))
            if is_right and not lacking:
                continue
            try:
                row_fields = _parse(line, nan=self._chooser.takes_nan)
                choice = self._chooser.choose(tuple(row_fields), "the line", sparse=True)
            except BulkError as error:
                problem = problem or error
                continue
            if not is_right and choice.item is None:
                lacking |= self._chooser.optional
            is_right = True
            lacking -= set(row_fields)
            others.update(dict.fromkeys(name for name in row_fields if name not in choice.names))
        if lacking:
            raise BulkError(
                f"{self._files[0]}: none of the first {SAMPLED_LINES} lines has "
                f"{list_names(sorted(lacking))}; other keys are {list_names([*others])}: rename "
                "one, or write null where a number is missing"
            )
        if problem is not None and not is_right:
            raise BulkError(
                f"{self._files[0]}: the first {SAMPLED_LINES} lines cannot be scored; the first "
                f"error: {problem}"
            )

    def _lines(self) -> Iterator[bytes]:
        for file in self._open_all():
            with file as stream:
                yield from _lines(stream)

    def _open_all(self) -> Iterator[AbstractContextManager[Any]]:
        if not self._files:
            yield nullcontext(self._stream)
        for path in self._files:
            try:
                yield path.open("rb")
            except OSError as error:
                raise BulkError(f"{path} cannot be read: {error.strerror}") from error


def _parse(line: bytes, *, nan: bool) -> dict[str, object]:
    if line == TOO_LONG:
        raise BulkError(f"the line has more than {MAX_LINE_BYTES} bytes")
    try:
        text = strip_byte_order_mark(line)
        content = orjson.loads(nan_as_null(text) if nan else text)
    except ValueError as error:
        raise BulkError(f"the line is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise BulkError("the line is not a JSON object")
    return content


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
        elif content := line.removeprefix(mark).strip():
            yield content
        mark = b""
