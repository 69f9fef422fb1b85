"""Rows as the bodies of requests to a handler."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from app.bulk.blocks import BlockBounds, raw_blocks
from app.bulk.handlers.bodies import BodyBlock, BodyChooser, BodyRecipe
from app.bulk.sources.tables import ParquetSource


def test_decimals_are_numbers(tmp_path: Path) -> None:
    table = {"price": [Decimal("1.50"), None], "tags": [[Decimal("2.25")], []]}
    pq.write_table(pa.table(table), tmp_path / "in.parquet")
    source = ParquetSource([tmp_path / "in.parquet"], BodyChooser())
    recipe = BodyRecipe(source.choice, source.integer_ids, parses=False)
    (block,) = recipe.decode(raw_blocks(source, 0, BlockBounds(9, 9)))
    assert isinstance(block, BodyBlock)
    assert [each.content for each in block.bodies] == [
        b'{"price":1.5,"tags":[2.25]}',
        b'{"price":null,"tags":[]}',
    ]
