"""A column for each number of a vector (--columns), and columns that are copied (--keep)."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.bulk.columns import Chooser
from app.bulk.errors import BulkError
from tests.unit.app.bulk.conftest import Bulk, errors, manifest, rows
from tests.unit.models.manifests import make_manifest, spec

TABLE = {"age": [1.0, 2.0, None, 500.0], "income": [10, 20, 30, 40], "y": ["a", None, "c", "d"]}
CSV = "age,income,y\n1,10,a\n2,20,\n,30,c\n500,40,d\n"
WANTED = [[2, 20], [4, 40], None, None]


def write(kind: str, **more: Any) -> str:
    name = f"in.{kind}"
    if kind == "csv":
        Path(name).write_text(CSV)
    else:
        pq.write_table(pa.table({**TABLE, **more}), name)
    return name


def found(name: str = "y") -> list[Any]:
    return [row[name] for row in rows()]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_columns_become_a_vector(bulk: Bulk, kind: str, workers: int) -> None:
    options = ["--columns", "x=age,income", "--keep", "y", "--workers", workers]
    assert bulk("double", write(kind), *options) == 0
    assert found() == WANTED
    copied = "" if kind == "csv" else None
    assert found("y_input") == ["a", copied, "c", "d"]
    assert [each["row"] for each in errors()] == [2, 3]
    assert manifest()["options"]["columns"] == ["x=age,income"]


def test_decimals_are_numbers(bulk: Bulk) -> None:
    ages = [Decimal("1.50"), Decimal("2.00"), None, Decimal("-4.25")]
    name = write("parquet", age=ages, input=[[Decimal("1.50"), each] for each in ages])
    options = ["--columns", "x=age,income", "--keep", "age"]
    assert bulk("double", name, *options) == 0
    assert found() == [[3, 20], [4, 40], None, [-8.5, 80]]
    assert found("age") == ages
    assert bulk("double", name, out="lists") == 0
    assert [row["y"] for row in rows("lists")] == [[3, 3], [3, 4], None, [3, -8.5]]


def test_the_column_of_a_wrong_number_is_named(bulk: Bulk) -> None:
    Path("in.csv").write_text("age,income\n1,2\n1,.5\n,2\n")
    assert bulk("double", "in.csv", "--columns", "x=age,income", "--max-bad", 1) == 0
    wrong = "'income': expected a number as in JSON, such as 0.5 or -1e3, got '.5'"
    assert found("error") == [None, wrong, "'age' is empty"]
    Path("in.jsonl").write_text('{"age": 1, "income": 2}\n{"age": 1, "income": ".5"}\n')
    assert bulk("double", "in.jsonl", "--columns", "x=age,income", out="lines") == 0
    assert [row["error"] for row in rows("lines")] == [None, wrong]
    columns = {"age": [1.0, None], "income": ["2", "3"]}
    pq.write_table(pa.table(columns), "in.parquet")
    assert bulk("double", "in.parquet", "--columns", "x=age,income", out="null") == 0
    assert [row["error"] for row in rows("null")] == [None, "'age' is empty"]


def test_usual_names_are_told_once() -> None:
    described = make_manifest(inputs=(spec("input", shape=(-1, 2)),))
    with pytest.raises(BulkError, match="it has no column 'input'; it has 'x': rename one"):
        Chooser(described).choose(["x"], "it")


def test_numbers_may_be_missing(bulk: Bulk) -> None:
    for kind in ("csv", "parquet"):
        given = ("--columns", "x=age,income", "--max-bad", 1)
        assert bulk("gaps", write(kind), *given, out=kind) == 0
        assert [row["y"] for row in rows(kind)] == [[1, 10], [2, 20], [-1, 30], [500, 40]]


def test_lines_have_columns_too(bulk: Bulk) -> None:
    Path("in.jsonl").write_text('{"age": 1, "income": 2}\n{"age": 1}\n')
    assert bulk("double", "in.jsonl", "--columns", "x=age,income") == 0
    assert found() == [[2, 4], None]
    assert "has no column 'income'" in errors()[0]["reason"]


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_all_other_columns_of_any_type_are_copied(bulk: Bulk, form: str) -> None:
    more = {
        "id": ["p", "q", "r", "s"],
        "when": [dt.datetime(2026, 1, 2, 3, 4)] * 4,
        "price": [Decimal("1.50")] * 4,
        "photo": [b"\0"] * 4,
        "tags": [["t"], None, [], ["u", "v"]],
        "sort": pa.array(["k", "l", "k", None]).dictionary_encode(),
    }
    options = ["--columns", "x=age,income", "--keep", "*", "--format", form]
    assert bulk("double", write("parquet", **more), *options) == 0
    names = ["id", "row", "y_input", "when", "price", "photo", "tags", "sort", "y", "error"]
    first, last = rows()[0], rows()[3]
    assert list(first) == names
    assert last["error"].startswith("the model failed")
    assert (first["id"], last["y_input"], last["tags"], last["sort"]) == (
        "p",
        "d",
        ["u", "v"],
        None,
    )
    if form == "parquet":
        assert (first["price"], first["photo"]) == (Decimal("1.50"), b"\0")
    else:
        assert (first["price"], first["photo"], first["when"]) == (
            *("1.50", "AA=="),
            "2026-01-02T03:04:00",
        )


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        (["--columns", "x=age"], 2, "expected float32 of shape [2], got shape [1]"),
        (["--columns", "z=age,income"], 2, "the inputs are 'x'"),
        (["--columns", "x"], 2, "must be the name of an input, =, and its columns"),
        (["--columns", "x=age,"], 2, "must be the name of an input"),
        (["--columns", "x=age,income", "--columns", "x=age,y"], 2, "once for each input"),
        (["--columns", "x=age,income", "--input-column", "age"], 2, "give one of them"),
        (["--columns", "x=age,incom"], 1, "has no column 'incom'; it has 'age', 'income', 'y'"),
        (["--columns", "x=age,income", "--keep", "z"], 1, "has no column 'z'"),
        (["--columns", "x=age,income", "--keep", "y,y"], 2, "each once, separated by commas"),
    ],
)
def test_mistakes(
    bulk: Bulk, capsys: pytest.CaptureFixture[str], options: list[str], code: int, told: str
) -> None:
    try:
        ended = bulk("double", write("parquet"), *options)
    except SystemExit as exit_:  # by argparse
        ended = int(str(exit_.code))
    assert (ended, told in capsys.readouterr().err) == (code, True)


@pytest.mark.parametrize("option", ["--columns=x=age,income", "--keep=y"])
def test_files_without_columns(bulk: Bulk, capsys: pytest.CaptureFixture[str], option: str) -> None:
    Path("in.png").write_bytes(b"")
    assert bulk("double", "in.png", option) == 2
    assert "pictures have no columns" in capsys.readouterr().err


def test_names_of_categories(bulk: Bulk) -> None:
    Path("in.csv").write_text("age,city,note\n1,75001,x\n2,Roma,y\n")
    assert bulk("cities", "in.csv", "--keep", "*") == 0
    assert (found(), found("note")) == ([[1, 2], [2, 1]], ["x", "y"])


def test_lines_cannot_be_copied(bulk: Bulk, capsys: pytest.CaptureFixture[str]) -> None:
    Path("in.jsonl").write_text('{"x": [1, 2], "y": 1}\n')
    assert bulk("double", "in.jsonl", "--keep", "y") == 2
    assert "--keep works with Parquet and CSV only" in capsys.readouterr().err


def test_a_run_with_other_columns_is_another_run(
    bulk: Bulk, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bulk("double", write("parquet"), "--columns", "x=age,income") == 0
    assert bulk("double", "in.parquet", "--columns", "x=income,age", "--resume") == 2
    assert "columns" in capsys.readouterr().err
