"""Decoding of rows to arrays by the model's codec; without torch, for worker processes."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from app.bulk.blocks import Block, Columns, Ids, RawBlock
from app.bulk.columns import ColumnChoice, is_category, parse_numbers
from app.bulk.inputs import readable
from app.bulk.numbers import numbers_of, vector_of, without_decimals, writable
from app.codecs.base import OCTET_STREAM, TEXT, Budget, Codec
from app.codecs.choose import codec_for
from app.errors import CallerError, InvalidInput
from app.types import Array, Arrays, Item
from models.manifest import Manifest
from models.system.local_paths import NotLocal, local_path

B = TypeVar("B", bound=Block)

MAX_PATH = 4096
MOST_SHOWN = 300  # characters of a name in a message
MAX_FILE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Recipe:
    """The parts of a decoder, which can be sent to worker processes, unlike a codec.

    Attributes:
        files: the files of its artifact that the codec needs, verified.
        choice: the columns to read.
        folder: the base of relative file names.
        integer_ids: whether ids are whole numbers.
        extra_columns: the columns that are copied into the results, and their Arrow types.
    """

    manifest: Manifest
    files: Mapping[str, bytes]
    choice: ColumnChoice
    folder: Path
    integer_ids: bool
    extra_columns: Mapping[str, Any] = field(default_factory=dict)


class Decoder:
    """Decodes blocks of rows."""

    def __init__(self, recipe: Recipe) -> None:
        self._manifest = recipe.manifest
        self._choice = recipe.choice
        self._folder = recipe.folder
        self._integer_ids = recipe.integer_ids
        self._codec: Codec = codec_for(recipe.manifest, recipe.files.__getitem__)
        self._is_text = recipe.manifest.codec.kind == "text"
        self._is_file = self._codec.files is not None
        self._is_name = recipe.choice.item is not None and is_category(recipe.manifest)
        self._may_be_missing = recipe.choice.optional_columns(recipe.manifest)
        of_vectors = chain.from_iterable(recipe.choice.vectors.values())
        self._numbers = frozenset(of_vectors) - {*self._may_be_missing}

    def decode(self, raw: RawBlock) -> Block:
        """Decode rows; an invalid row gets an error.

        Raises:
            BulkError: if a file cannot be read.
        """
        began = time.perf_counter()
        columns = raw.chunk.columns()
        choice = self._choice
        count = len(raw.chunk)
        block = undecoded(Block, raw, columns, choice, integer_ids=self._integer_ids)
        values = {name: without_decimals(columns.values[name]) for name in choice.inputs}
        columns = Columns(values)
        if not self._take_numbers(block, columns, choice, count):
            self._take_items(block, columns, choice, count)
        block.decode_s = time.perf_counter() - began
        return block

    def _take_numbers(
        self, block: Block, columns: Columns, choice: ColumnChoice, count: int
    ) -> bool:
        """Take whole columns of numbers; False if they are not, and each row must be decoded."""
        specs = self._manifest.inputs
        if self._is_text or (choice.item is not None and len(specs) > 1):
            return False
        arrays: dict[str, Array] = {}
        good = np.ones(count, bool)
        for spec in specs:
            if spec.name in choice.vectors:
                numbers = vector_of(
                    spec, [columns.values[each] for each in choice.vectors[spec.name]]
                )
            else:
                name = choice.parts[spec.name] if choice.item is None else choice.item
                numbers = numbers_of(spec, columns.values[name])
            if numbers is None:
                return False
            arrays[spec.name], right = numbers
            good &= right
        for row in np.flatnonzero(~good).tolist():
            item = self._item(block, columns, choice, row)
            if item is not None:
                arrays = {name: writable(array) for name, array in arrays.items()}
                for name, array in arrays.items():
                    array[row] = item.arrays[name]
                good[row] = True
        if good.all():
            block.arrays = arrays
        else:
            block.good = np.flatnonzero(good)
            block.arrays = {name: array[good] for name, array in arrays.items()}
        return True

    def _take_items(self, block: Block, columns: Columns, choice: ColumnChoice, count: int) -> None:
        values = Columns({name: list_of(each) for name, each in columns.values.items()})
        items, good = [], []
        for row in range(count):
            if row in block.errors:
                continue
            item = self._item(block, values, choice, row)
            if item is not None:
                items.append(item)
                good.append(row)
        block.good = np.array(good, np.int64)
        if items and all(item.note is None and not item.length for item in items):
            first = items[0].signature
            if all(item.signature == first for item in items):
                block.arrays = _stack(items)
                return
        block.items = items

    def _item(self, block: Block, columns: Columns, choice: ColumnChoice, row: int) -> Item | None:
        """The item of a row; None if it is invalid, and its error is in the block."""
        try:
            row_of = {name: plain(columns.values[name][row]) for name in choice.inputs}
            for name in self._may_be_missing:
                if _is_missing(row_of[name], self._is_name or name in choice.texts):
                    row_of[name] = None
            if not self._is_text:
                _check_filled(row_of, self._numbers)
            return self._decode_value(choice.item_of(row_of, nan=self._codec.takes_nan))
        except CallerError as error:
            block.errors[row] = str(error)
            return None

    def _decode_value(self, value: object) -> Item:
        budget = Budget()
        if value is None and not self._may_be_missing:
            raise InvalidInput("the row has no input")
        if not self._is_text and not self._is_name:
            value = parse_numbers(value, nan=self._codec.takes_nan)
        if self._is_file:
            value = self._bytes_of(value)
        if isinstance(value, bytes):
            kind = TEXT if self._is_text else OCTET_STREAM
            (item,) = self._codec.decode_raw(kind, value, max_items=None, budget=budget)
            return item
        return self._codec.decode(value, budget)

    def _bytes_of(self, value: object) -> object:
        """A file's bytes, if the value is its name or has them in a field."""
        if isinstance(value, dict) and value.keys() <= {"bytes", "path"}:
            name = value.get("path")
            value = value.get("bytes") or (self._file(name) if isinstance(name, str) else None)
        if isinstance(value, Path):
            return read_file(value)
        # Base64 contains no full stop; names of files do.
        if isinstance(value, str) and not value.startswith("data:") and "." in value[:MAX_PATH]:
            return read_file(self._file(value))
        return value

    def _file(self, name: str) -> Path:
        try:
            return self._folder / local_path(name)
        except NotLocal as error:
            raise InvalidInput(f"the file name is a URL: {error}") from error


def undecoded(
    kind: type[B], raw: RawBlock, columns: Columns, choice: ColumnChoice, *, integer_ids: bool
) -> B:
    """A block before its rows are decoded: all of them are good but for errors of the columns.

    Args:
        kind: of the block.
        raw: the rows.
        columns: of the rows.
        choice: names the column of the ids, and those that are copied.
        integer_ids: whether ids are whole numbers; else they are texts.
    """
    count = len(raw.chunk)
    return kind(
        raw.first,
        _ids_of(columns, choice, raw.first, count, integer=integer_ids),
        np.arange(count),
        dict(columns.errors),
        None,
        None,
        raw.digest,
        extra_columns=[columns.values[name] for name in choice.extra_columns],
    )


def _ids_of(
    columns: Columns, choice: ColumnChoice, first: int, count: int, *, integer: bool
) -> Ids:
    """The ids of rows; a row without one has its number.

    Args:
        columns: of the rows.
        choice: names the column of the ids.
        first: number of the first row.
        count: number of rows.
        integer: whether ids are whole numbers; else they are texts.
    """
    if choice.id is None:
        if integer:
            return np.arange(first, first + count)
        return [str(number) for number in range(first, first + count)]
    ids = list_of(columns.values[choice.id])
    if integer:
        return [first + row if each is None else each for row, each in enumerate(ids)]
    return [_text(first + row if each is None else each) for row, each in enumerate(ids)]


def _is_missing(value: object, is_text: bool) -> bool:
    """Whether a cell of a table is empty; or, for numbers, is the word nan."""
    empty = ("",) if is_text else ("", "nan")
    return isinstance(value, str) and value.strip().lower() in empty


def _check_filled(row: Mapping[str, object], numbers: Collection[str]) -> None:
    """Name an empty cell: of a table of texts, such as CSV, or null in a column of numbers."""
    for name, value in row.items():
        if (not value.strip()) if isinstance(value, str) else (value is None and name in numbers):
            raise InvalidInput(f"{name!r} is empty")


def plain(value: Any) -> object:
    """A value of a column as a Python object."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return value.as_py() if hasattr(value, "as_py") else value


def _text(name: object) -> str:
    return name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else str(name)


def list_of(column: Any) -> Sequence[Any]:
    """The values of a column; texts that are not UTF-8, which Arrow does not check, as bytes."""
    if not hasattr(column, "to_pylist"):
        values: Sequence[Any] = column
        return values
    try:
        values = column.to_pylist()
    except UnicodeDecodeError:
        values = [_octets(each) for each in column]
    return values


def _octets(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return scalar.as_buffer().to_pybytes() if hasattr(scalar, "as_buffer") else None


def read_file(path: Path) -> bytes:
    """The bytes of a regular file; a pipe or a device might never end.

    Raises:
        InvalidInput: if it cannot be read.
    """
    name = readable(str(path))[:MOST_SHOWN]
    try:
        # Not blocking: otherwise opening a pipe would wait for a writer.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InvalidInput(f"{name} is not a regular file")
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidInput(f"{name} cannot be read: {reason}") from error
    if len(data) > MAX_FILE_BYTES:
        raise InvalidInput(f"{name} has more than {MAX_FILE_BYTES} bytes")
    return data


def _stack(items: Sequence[Item]) -> Arrays:
    names = items[0].arrays
    return {name: np.stack([item.arrays[name] for item in items]) for name in names}
