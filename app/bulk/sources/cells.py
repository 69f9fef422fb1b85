"""Rows of CSV files. A damaged row becomes a bad row, and reading continues with the next one.

It uses Python's reader, because Arrow's stops at bad rows and at rows larger than its buffer.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Self, TextIO, TypeAlias

import pyarrow as pa

from app.bulk.blocks import Columns
from app.bulk.columns import ColumnChoice, ColumnChooser
from app.bulk.errors import BulkError
from models.system.byte_order import NotUtf8Error, strip_byte_order_mark

SAMPLED_ROWS = 100  # rows examined for their size
CHUNK_CHARACTERS = 8 << 20  # of rows, if they are long
MAX_LINE_CHARACTERS = 256 << 20


@dataclass(frozen=True, slots=True)
class BrokenRow:
    """A row without cells that can be used.

    Attributes:
        reason: why.
        id: its id, if it can still be told.
    """

    reason: str
    id: str | None = None


Row: TypeAlias = tuple[str, ...] | BrokenRow  # the wanted cells, or the row's error


@dataclass(frozen=True, slots=True)
class CellsChunk:
    """Rows as texts."""

    names: tuple[str, ...]
    rows: list[Row]
    id: str | None = None  # name of the column with ids

    def __len__(self) -> int:
        return len(self.rows)

    def cut(self, start: int, stop: int) -> Self:
        return type(self)(self.names, self.rows[start:stop], self.id)

    def join(self, others: Sequence[Self]) -> Self:
        rows = list(chain(self.rows, *(each.rows for each in others)))
        return type(self)(self.names, rows, self.id)

    def columns(self) -> Columns:
        values: dict[str, list[str | None]] = {name: [None] * len(self) for name in self.names}
        errors: dict[int, str] = {}
        for row, cells in enumerate(self.rows):
            if isinstance(cells, BrokenRow):
                errors[row] = cells.reason
                if self.id is not None and cells.id and _is_text(cells.id):
                    values[self.id][row] = cells.id
                continue
            for name, cell in zip(self.names, cells, strict=True):
                if cell.isascii() or _is_text(cell):
                    values[name][row] = cell
                else:
                    errors[row] = f"{name!r} is not UTF-8"
        return Columns(values, errors)

    def add_to(self, digest: hashlib._Hash) -> None:
        """Do nothing: files are not a stream."""


class CsvSource:
    """Rows of CSV files with a header, without empty lines; every column is text. See `Source`.

    Raises:
        BulkError: if a file has no header, lacks a column or has it twice.
    """

    is_stream = False
    integer_ids = False
    has_numbers = False
    total: int | None = None

    def __init__(self, files: Sequence[Path], chooser: ColumnChooser) -> None:
        self._files = files
        for path in files:
            header = _header(_records(path), path)
            choice: ColumnChoice = chooser.choose(header, str(path))
            if path == files[0]:
                self.choice = choice
            elif choice != self.choice:
                raise BulkError(
                    f"{path} and {files[0]} have different columns: score them separately"
                )
        self.extra_columns: Mapping[str, Any] = dict.fromkeys(
            self.choice.extra_columns, pa.string()
        )
        self.row_bytes = max(map(_size, islice(self._rows(), SAMPLED_ROWS)), default=0)

    def chunks(self, first: int, rows: int) -> Iterator[CellsChunk]:
        names = tuple(self.choice.names)
        chunk: list[Row] = []
        size = 0
        for row in islice(self._rows(), first, None):
            chunk.append(row)
            size += _size(row)
            if len(chunk) >= rows or size >= CHUNK_CHARACTERS:
                yield CellsChunk(names, chunk, self.choice.id)
                chunk, size = [], 0
        if chunk:
            yield CellsChunk(names, chunk, self.choice.id)

    def _rows(self) -> Iterator[Row]:
        for path in self._files:
            records = _records(path)
            header = _header(records, path)
            places = [header.index(name) for name in self.choice.names]
            for cells in records:
                if isinstance(cells, str):
                    yield BrokenRow(cells)
                elif len(cells) != len(header):
                    reason = f"the row has {len(cells)} cells, the header has {len(header)}"
                    yield BrokenRow(reason, self._id_of(cells, header))
                else:
                    yield tuple(cells[place] for place in places)

    def _id_of(self, cells: list[str], header: list[str]) -> str | None:
        """The id of a row with too few or too many cells; None if its place is not certain.

        Missing cells are the last ones; surplus cells come from commas in an unquoted input.
        """
        if self.choice.id is None:
            return None
        place, surplus = header.index(self.choice.id), len(cells) - len(header)
        if surplus > 0:
            inputs = [header.index(name) for name in self.choice.inputs]
            if min(inputs) < place < max(inputs):
                return None
            place += surplus * (place > max(inputs))
        return cells[place] if place < len(cells) else None


class _Lines:
    """The lines of a file. `csv.reader` requests more lines while a quote is open.

    Attributes:
        is_at_end: whether a line after the last one was requested.
        too_long: whether a line was skipped.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.is_at_end = self.too_long = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        line = self._file.readline(MAX_LINE_CHARACTERS)
        if not line:
            self.is_at_end = True
            raise StopIteration
        if len(line) < MAX_LINE_CHARACTERS:
            return line
        while line and not line.endswith(("\n", "\r")):
            line = self._file.readline(CHUNK_CHARACTERS)
        self.too_long = True
        return ""


def _records(path: Path) -> Iterator[list[str] | str]:
    """The cells of each row, or its error."""
    csv.field_size_limit(MAX_LINE_CHARACTERS)
    try:
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            lines = _Lines(file)
            reader = csv.reader(lines, strict=True)  # otherwise a missing quote joins two rows
            while True:
                cells: list[str] | str | None
                try:
                    cells = next(reader, None)
                except csv.Error as error:
                    cells = f"the row is not CSV: {error}"
                    if lines.is_at_end:
                        cells = "the row has a quote that is not closed"
                if cells is None:
                    return
                if lines.too_long:
                    lines.too_long = False
                    yield f"the row has a line of more than {MAX_LINE_CHARACTERS} characters"
                elif cells:
                    yield cells
    except OSError as error:
        raise BulkError(f"{path} cannot be read as CSV: {error.strerror}") from error


def _header(records: Iterator[list[str] | str], path: Path) -> list[str]:
    header = next(records, "it is empty")
    if isinstance(header, str):
        raise BulkError(f"{path} cannot be read as CSV: {header}")
    try:
        strip_byte_order_mark(header[0].encode(errors="surrogateescape"))
    except NotUtf8Error as error:
        raise BulkError(f"{path} cannot be read as CSV: {error}") from error
    return header


def _size(row: Row) -> int:
    return len(row.reason) if isinstance(row, BrokenRow) else sum(map(len, row))


def _is_text(cell: str) -> bool:
    try:
        cell.encode()
    except UnicodeEncodeError:
        return False
    return True
