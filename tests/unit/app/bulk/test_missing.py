"""Missing values in tables: empty cells, null and NaN, for a model that takes them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.app.bulk.conftest import Bulk, errors, rows

WANTED = [[1, 2], [-1, 3], [4, -1], [-1, -1]]


def found() -> list[list[float]]:
    return [row["y"] for row in rows()]


def test_empty_cells_of_csv(bulk: Bulk) -> None:
    Path("in.csv").write_text("age,rooms\n1,2\n,3\n4,nan\n NaN ,\nx,5\n1e99,5\n")
    assert bulk("ages", "in.csv") == 0
    assert found() == [*WANTED, None, None]
    assert [each["reason"][:20] for each in errors()] == [
        "'age': expected floa",
        "'age': infinity, or ",
    ]


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64(), pa.int32()])
def test_null_in_parquet(bulk: Bulk, kind: pa.DataType) -> None:
    columns = {"age": [1, None, 4, None], "rooms": [2, 3, None, None]}
    pq.write_table(pa.table({k: pa.array(v, kind) for k, v in columns.items()}), "in.parquet")
    assert bulk("ages", "in.parquet") == 0
    assert found() == WANTED


def test_null_nan_and_absent_keys_in_lines(bulk: Bulk) -> None:
    lines = [
        '{"age": 1, "rooms": 2}',
        '{"rooms": 3}',
        '{"age": 4, "rooms": NaN}',
        '{"age": null, "rooms": null}',
        '{"agee": 1}',
    ]
    Path("in.jsonl").write_text("\n".join(lines))
    assert bulk("ages", "in.jsonl") == 0
    assert found() == [*WANTED, None]


def test_an_input_that_no_line_has_is_a_mistake(
    bulk: Bulk, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else all rows would be scored without it."""
    Path("in.jsonl").write_text('{"agee": 1, "rooms": 2}\n' * 3)
    assert bulk("ages", "in.jsonl") == 1
    assert "lines has 'age'; other keys are 'agee': rename one" in capsys.readouterr().err
    Path("in.jsonl").write_text('{"rooms": 2}\n' * 99 + '{"age": null, "rooms": 2}\n')
    assert bulk("ages", "in.jsonl") == 0


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
def test_names_of_categories(bulk: Bulk, kind: str) -> None:
    """A name that looks like a number is a name in every format."""
    cities = ["Roma", "75001", "Rome", None]
    if kind == "csv":
        Path("in.csv").write_text("age,city\n1,Roma\n1,75001\n1,Rome\n1,\n")
    elif kind == "parquet":
        pq.write_table(pa.table({"age": [1.0] * 4, "city": cities}), "in.parquet")
    else:
        lines = [json.dumps({"age": 1, "city": each}) for each in cities]
        Path("in.jsonl").write_text("\n".join(lines))
    assert bulk("cities", f"in.{kind}", out="open") == 0
    assert [row["y"] for row in rows("open")] == [[1, 1], [1, 2], [1, 3], [1, 3]]
    assert bulk("strict", f"in.{kind}", out="strict") == 0
    assert [row["y"] for row in rows("strict")] == [[1, 1], [1, 2], None, None]
    assert "unknown category 'Rome'" in errors("strict")[0]["reason"]


def test_nan_in_lists_of_csv(bulk: Bulk) -> None:
    Path("in.csv").write_text('x\n"[1, NaN]"\n"[null, 2]"\n')
    assert bulk("gaps", "in.csv") == 0
    assert found() == [[1, -1], [-1, 2]]


def test_indices_of_categories(bulk: Bulk) -> None:
    pq.write_table(pa.table({"age": [1.0, 2.0], "city": [2, 4]}), "in.parquet")
    assert bulk("strict", "in.parquet") == 0
    assert found() == [[1, 2], None]
