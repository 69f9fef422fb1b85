"""The columns that every result has: `id`, `row`, copies of the input's, and `error`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from app.bulk.blocks import Block
from app.bulk.errors import UsageError

NO_COLUMNS: Mapping[str, Any] = MappingProxyType({})


def schema_of(
    fields: Sequence[tuple[str, Any]],
    *,
    integer_ids: bool,
    extra_columns: Mapping[str, Any] = NO_COLUMNS,
) -> Any:
    """The Arrow schema of a run's results.

    Args:
        fields: names and Arrow types of the prediction's columns.
        integer_ids: whether ids are whole numbers.
        extra_columns: columns of the input that are copied, and their Arrow types.

    Raises:
        UsageError: if two columns would have one name.
    """
    names = {"id", "row", "error", *(name for name, _ in fields)}
    schema = pa.schema(
        [
            ("id", pa.int64() if integer_ids else pa.string()),
            ("row", pa.int64()),
            *((_free_name(name, names), kind) for name, kind in extra_columns.items()),
            *fields,
            ("error", pa.string()),
        ]
    )
    if len(set(schema.names)) < len(schema.names):
        columns = ", ".join(schema.names)
        raise UsageError(f"--keep: the results would have columns of one name: {columns}")
    return schema


def table_of(block: Block, predictions: Sequence[Any], errors: Any, schema: Any) -> Any:
    """A table with a row for each row of a block.

    Args:
        block: has the ids, and the copied columns.
        predictions: Arrow arrays, one for each column of the prediction.
        errors: an Arrow array of texts.
        schema: see `schema_of`.
    """
    ids = pa.array(block.ids, schema.field("id").type)
    numbers = pa.array(np.arange(block.first, block.first + len(block)))
    fields = [schema.field(2 + at) for at in range(len(block.extra_columns))]
    extra = [
        each if isinstance(each, pa.Array | pa.ChunkedArray) else pa.array(each, field.type)
        for each, field in zip(block.extra_columns, fields, strict=True)
    ]
    return pa.Table.from_arrays([ids, numbers, *extra, *predictions, errors], schema=schema)


def _free_name(name: str, names: Collection[str]) -> str:
    """The name of a copied column; one that the results have gets a suffix."""
    return f"{name}_input" if name in names else name
