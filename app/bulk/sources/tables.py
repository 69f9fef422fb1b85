"""Rows of Parquet files, read in pieces so that memory does not depend on their size."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from app.bulk.blocks import Columns
from app.bulk.columns import ColumnChoice, ColumnChooser
from app.bulk.errors import BulkError
from app.bulk.numbers import can_fit, element_of, has_numbers
from app.codecs.values import wanted as described
from models.tensors import TensorSpec

BUFFER_BYTES = 1 << 20  # read at a time from a column of a file


@dataclass(frozen=True, slots=True)
class TableChunk:
    """Rows of an Arrow table."""

    table: Any

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def cut(self, start: int, stop: int) -> Self:
        return type(self)(self.table.slice(start, stop - start))

    def join(self, others: Sequence[Self]) -> Self:
        if not others:
            return self
        return type(self)(pa.concat_tables([self.table, *(each.table for each in others)]))

    def columns(self) -> Columns:
        names = self.table.column_names
        return Columns({name: self.table.column(name).combine_chunks() for name in names})

    def add_to(self, digest: hashlib._Hash) -> None:
        """Do nothing: a table is not a stream."""


class ParquetSource:
    """Rows of Parquet files that have the same columns; see `Source`.

    Raises:
        BulkError: if a file is damaged, lacks a column, or has a column of another type, or of a
            width that the model does not take.
    """

    is_stream = False

    def __init__(self, files: Sequence[Path], chooser: ColumnChooser) -> None:
        self._files = files
        self._rows = []
        self.row_bytes = 0
        schema = None
        for path in files:
            with _open(path) as file:
                there = file.schema_arrow
                self.choice: ColumnChoice = chooser.choose(there.names, str(path))
                fields = [there.field(name).remove_metadata() for name in self.choice.names]
                mine = pa.schema([field.with_nullable(True) for field in fields])
                if schema is not None and mine != schema:
                    raise BulkError(
                        f"{path} has the columns {_types(mine)}, {files[0]} has {_types(schema)}: "
                        "score them separately, or convert one"
                    )
                schema = self._schema = schema or mine
                self._rows.append(file.metadata.num_rows)
                self.row_bytes = max(self.row_bytes, _row_bytes(file.metadata, self.choice.names))
        self.total: int | None = sum(self._rows)
        id_type = schema.field(self.choice.id).type if schema and self.choice.id else pa.int64()
        if not _names_rows(id_type):
            raise BulkError(
                f"{files[0]}: the ids in {self.choice.id!r} are {id_type}, expected whole numbers "
                "or texts: convert them, or name another column with --id-column"
            )
        if schema is not None:
            self._check_widths(schema, chooser)
        inputs = [each.type for each in schema or () if each.name in self.choice.inputs]
        self.extra_columns: Mapping[str, Any] = (
            {name: schema.field(name).type for name in self.choice.extra_columns} if schema else {}
        )
        self.has_numbers = all(map(has_numbers, inputs))
        self.integer_ids = bool(pa.types.is_integer(id_type)) and id_type != pa.uint64()

    def _check_widths(self, schema: Any, chooser: ColumnChooser) -> None:
        """Refuse a column of numbers none of whose rows can fit, before all of them are bad."""
        specs = chooser.specs
        names = self.choice.columns_of(specs)
        for spec in specs:
            if spec.name in self.choice.vectors:
                for name in self.choice.vectors[spec.name]:
                    self._check_width(element_of(spec), name, schema)
                continue
            if spec.name in names:
                self._check_width(spec, names[spec.name], schema)

    def _check_width(self, spec: TensorSpec, name: str, schema: Any) -> None:
        kind = schema.field(name).type
        if not can_fit(spec, kind):
            raise BulkError(
                f"{self._files[0]}: the column {name!r} has the type {kind}, but {spec.name!r} "
                f"needs {described(spec)}"
            )

    def chunks(self, first: int, rows: int) -> Iterator[TableChunk]:
        for path, count in zip(self._files, self._rows, strict=True):
            if first < count:
                yield from self._of(path, first, rows)
            first = max(0, first - count)

    def _of(self, path: Path, first: int, rows: int) -> Iterator[TableChunk]:
        with _open(path) as file:
            groups: list[int] = []
            for group in range(file.metadata.num_row_groups):
                count = file.metadata.row_group(group).num_rows
                if first >= count and not groups:
                    first -= count
                    continue
                groups.append(group)
            skip = first
            columns = self.choice.names
            batches = file.iter_batches(rows, row_groups=groups, columns=columns, use_threads=False)
            while True:
                try:
                    batch = next(batches, None)
                except (OSError, pa.ArrowException) as error:
                    raise BulkError(f"{path} is damaged: {error}") from error
                if batch is None:
                    return
                if skip < batch.num_rows:
                    columns_of = batch.slice(skip).select(columns).columns
                    yield TableChunk(pa.Table.from_arrays(columns_of, schema=self._schema))
                skip = max(0, skip - batch.num_rows)


def _open(path: Path) -> Any:
    try:
        return pq.ParquetFile(path, buffer_size=BUFFER_BYTES, pre_buffer=False)
    except (OSError, pa.ArrowException) as error:
        raise BulkError(f"{path} cannot be read as Parquet: {error}") from error


def _names_rows(kind: Any) -> bool:
    """Whether a column of an Arrow type can be written as ids that a join will find."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    types = pa.types
    is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    return bool(is_text or types.is_integer(kind) or types.is_null(kind))


def _row_bytes(metadata: Any, names: Sequence[str]) -> int:
    """The mean uncompressed size of a row in the group with the largest rows."""
    largest = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if not number:
            paths = [group.column(at).path_in_schema for at in range(group.num_columns)]
            indices = [
                at
                for at, path in enumerate(paths)
                if any(path == name or path.startswith(f"{name}.") for name in names)
            ]
        size = sum(group.column(at).total_uncompressed_size for at in indices)
        largest = max(largest, size // max(1, group.num_rows))
    return largest


def _types(schema: Any) -> str:
    return ", ".join(f"{each.name}: {each.type}" for each in schema)
