"""Rows as the bodies of requests to a handler."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import orjson

from app.bulk.blocks import Block, Columns, RawBlock
from app.bulk.columns import (
    ALL_OTHERS,
    ID,
    INPUT,
    ColumnChoice,
    check_named,
    parse_numbers,
    with_extra,
)
from app.bulk.decoding import list_of, plain, read_file, undecoded
from app.bulk.errors import BulkError
from app.bulk.numbers import without_decimals
from app.codecs.base import JSON, OCTET_STREAM
from app.errors import InvalidInput
from models.handlers import media_type_of
from models.tensors import TensorSpec


class Body(NamedTuple):
    """The body of a request.

    Attributes:
        media_type: its Content-Type.
        content: the bytes, or the file that has them.
    """

    media_type: str
    content: bytes | Path

    def read(self) -> bytes:
        """The bytes.

        Raises:
            InvalidInput: if the file cannot be read.
        """
        return read_file(self.content) if isinstance(self.content, Path) else self.content


@dataclass(slots=True)
class BodyBlock(Block):
    """See `Block`; `bodies` has one for each good row."""

    bodies: list[Body] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class BodyChoice(ColumnChoice):
    """See `ColumnChoice`; a row without a column of bodies is an object of all its columns."""

    def item_of(self, row: Mapping[str, object], *, nan: bool = False) -> object:
        """See `ColumnChoice.item_of`; texts stay texts."""
        if self.item is not None:
            return row[self.item]
        return {key: row[name] for key, name in self.parts.items()}


@dataclass(frozen=True, slots=True)
class BodyChooser:
    """See `ColumnChooser`."""

    input: str | None = None
    id: str | None = None
    extra_columns: Sequence[str] = ()
    vectors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    specs: Sequence[TensorSpec] = ()
    takes_nan: bool = False
    optional: frozenset[str] = frozenset()

    def choose(self, there: Sequence[str], where: str, *, sparse: bool = False) -> BodyChoice:
        """See `ColumnChooser`: the column `input`, else all that are not copied.

        Raises:
            BulkError: if a named column does not exist, or no column is left for the body.
        """
        check_named((self.input, self.id), there, where)
        id_column = self.id or (ID if ID in there else None)
        item = self.input or (INPUT if INPUT in there else None)
        parts: dict[str, str] = {}
        if item is None:
            if tuple(self.extra_columns) == ALL_OTHERS:
                raise BulkError(f"--keep '*': {where} has no column 'input', so all are the body")
            left_out = {id_column, *self.extra_columns}
            parts = {name: name for name in there if name not in left_out}
            if not parts:
                raise BulkError(f"{where} has no column for the body of a request")
        choice = with_extra(ColumnChoice(item, parts, id_column), self.extra_columns, there, where)
        return BodyChoice(item, parts, id_column, extra_columns=choice.extra_columns)

    def without_id(self) -> Self:
        return type(self)(self.input, None, self.extra_columns)


@dataclass(frozen=True, slots=True)
class BodyRecipe:
    """How rows become bodies.

    Attributes:
        choice: the columns to read.
        integer_ids: whether ids are whole numbers.
        parses: whether cells are texts of which numbers, lists and objects are JSON, as in CSV.
    """

    choice: ColumnChoice
    integer_ids: bool
    parses: bool

    def decode(self, raw_blocks: Iterator[RawBlock]) -> Iterator[Block]:
        """Blocks with bodies; an invalid row gets an error."""
        return map(self._block, raw_blocks)

    def _block(self, raw: RawBlock) -> BodyBlock:
        began = time.perf_counter()
        columns, choice, count = raw.chunk.columns(), self.choice, len(raw.chunk)
        block = undecoded(BodyBlock, raw, columns, choice, integer_ids=self.integer_ids)
        cells = {name: without_decimals(columns.values[name]) for name in choice.inputs}
        values = Columns({name: list_of(each) for name, each in cells.items()})
        good = []
        for row in range(count):
            if row in block.errors:
                continue
            try:
                fields = {name: self._cell(each[row]) for name, each in values.values.items()}
                block.bodies.append(_body(choice.item_of(fields)))
                good.append(row)
            except InvalidInput as error:
                block.errors[row] = str(error)
        block.good = np.array(good, np.int64)
        block.decode_s = time.perf_counter() - began
        return block

    def _cell(self, value: object) -> object:
        value = plain(value)
        return parse_numbers(value, nan=False) if self.parses else value


def _body(value: object) -> Body:
    if isinstance(value, Path):
        return Body(media_type_of(value) or OCTET_STREAM, value)
    if isinstance(value, bytes):
        return Body(OCTET_STREAM, value)
    try:
        return Body(JSON, orjson.dumps(value))
    except TypeError as error:
        raise InvalidInput(
            f"the row has no form in JSON: {error}; a column of bytes can be the whole body: name "
            "it with --input-column"
        ) from error
