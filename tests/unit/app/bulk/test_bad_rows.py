"""Rows that are wrong do not keep the others from their answers, and are told with a reason."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.bulk.sources import cells, lines
from tests.unit.app.bulk.conftest import Bulk, errors, manifest, rows

GOOD = [1.0, 2.0]
BAD = [None, [1.0], [float("nan"), 0.0], [1e300, 0.0], [101.0, 0.0], [-101.0, 0.0]]
REASONS = (
    "the row has no input",
    "'x': expected float32 of shape [2], got shape [1]",
    "'x': NaN, infinity, or a number too large for float32 at [0]",
    "'x': NaN, infinity, or a number too large for float32 at [0]",
    "the model failed on this item: ",
    "the model returned NaN or infinity for this item",
)


@pytest.mark.parametrize("workers", [0, 1])
def test_every_bad_row_has_its_reason(bulk: Bulk, workers: int) -> None:
    column = [GOOD, *BAD, GOOD]
    pq.write_table(pa.table({"input": pa.array(column, pa.list_(pa.float64()))}), "in.parquet")
    assert bulk("double", "in.parquet", "--workers", workers, "--max-bad", 0.75) == 0
    found = rows()
    assert [row["y"] for row in found] == [[2, 4], *[None] * len(BAD), [2, 4]]
    assert found[0]["error"] is found[-1]["error"] is None
    for row, reason in zip(found[1:-1], REASONS, strict=True):
        assert row["error"].startswith(reason), row
    assert [(each["row"], each["id"]) for each in errors()] == [(n, str(n)) for n in range(1, 7)]
    assert manifest()["errors"] == 6


@pytest.mark.parametrize(
    ("model", "table"),
    [
        ("double", {"input": pa.array([[math.nan, 0.0]] * 3)}),
        ("double", {"input": pa.array([None] * 3, pa.list_(pa.float32()))}),
        ("double", {"input": pa.array([[1.0]] * 3)}),
        ("small", {"picture": pa.array([None] * 3, pa.string()), "shift": pa.array([[0.0]] * 3)}),
        ("topics", {"input": pa.array([None] * 3, pa.string())}),
        ("pictures", {"input": pa.array([b"no"] * 3)}),
    ],
    ids=["not finite", "null", "short", "several", "texts", "pictures"],
)
def test_block_with_only_bad_rows(
    bulk: Bulk, model: str, table: dict[str, pa.Array], capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(pa.table(table), "in.parquet")
    assert bulk(model, "in.parquet", "--workers", 0, "--max-bad", 1) == 1
    assert len(errors()) == len(rows()) == 3
    told = capsys.readouterr().err
    assert "no row has a prediction: see out/errors.parquet for the reasons\n" in told
    assert bulk(model, "in.parquet", "--workers", 0, "--resume") == 1  # although it is finished
    told = capsys.readouterr().err
    assert "out is already finished\ntorchlane: no row has a prediction" in told


def test_empty_cells_are_named(bulk: Bulk) -> None:
    Path("one.csv").write_text('id,input\na,"[1, 2]"\nb,\nc," "\n')
    assert bulk("double", "one.csv", "--max-bad", 1, out="one") == 0
    assert [row["error"] for row in rows("one")] == [None, "'input' is empty", "'input' is empty"]
    Path("two.csv").write_text("picture,shift\n[0],\n")
    assert bulk("small", "two.csv", out="two") == 1
    assert [row["error"] for row in rows("two")] == ["'shift' is empty"]
    Path("text.csv").write_text("id,text\na,cat\nb,\n")  # an empty text is a text
    assert bulk("topics", "text.csv", out="text") == 0
    assert [row["error"] for row in rows("text")] == [None, None]


@pytest.mark.parametrize(
    ("header", "row", "id"),
    [
        ("id,input", "a", "a"),
        ("id,input", "a,[1,2,3]", "a"),
        ("input,id", "[1,2],a", "a"),
        ("input,id,more", "[1,2],a,x", "a"),
        ("input,id", '"[1,2]"', "0"),
        ("more,input,id", "x,[1,2],\xff", "0"),
        ("id,input", ",[1,2]", "0"),
    ],
)
def test_rows_with_too_few_or_too_many_cells_keep_their_id(
    bulk: Bulk, header: str, row: str, id: str
) -> None:
    Path("in.csv").write_bytes(f"{header}\n{row}\n".encode("latin-1"))
    assert bulk("double", "in.csv") == 1
    (only,) = rows()
    assert (only["id"], only["row"]) == (id, 0)
    assert only["error"].startswith("the row has ")


def test_a_larger_share_of_bad_rows_than_allowed_is_a_failure(
    bulk: Bulk, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(pa.table({"input": [GOOD, [1.0], GOOD, [1.0]]}), "half.parquet")
    assert bulk("double", "half.parquet", out="half") == 0
    assert "2 of 4 rows are bad: see half/errors.parquet" in capsys.readouterr().err
    pq.write_table(pa.table({"input": [[1.0], [1.0], GOOD, GOOD, [1.0]]}), "most.parquet")
    assert bulk("double", "most.parquet") == 1
    told = capsys.readouterr().err
    assert "torchlane: 3 of 5 rows are bad, --max-bad allows 0.5: see out/errors.parquet" in told
    assert (manifest()["status"], manifest()["rows"]) == ("finished", 5)
    assert bulk("double", "most.parquet", "--resume") == 1
    assert "3 of 5 rows are bad, --max-bad allows 0.5" in capsys.readouterr().err
    assert bulk("double", "most.parquet", "--resume", "--max-bad", 0.6) == 0


def test_a_resumed_run_counts_the_bad_rows_of_all_parts(
    bulk: Bulk, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(pa.table({"input": [[1.0]] * 6 + [GOOD] * 4}), "in.parquet")
    shards = ("--rows-per-shard", 2)
    assert bulk("double", "in.parquet", *shards, "--max-errors", 4) == 3
    capsys.readouterr()
    assert bulk("double", "in.parquet", *shards, "--resume") == 1
    told = capsys.readouterr().err
    assert "4 rows in" in told
    assert "6 of 10 rows are bad, --max-bad allows 0.5" in told


def test_invalid_lines_do_not_affect_others(bulk: Bulk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 200)
    good, other = {"input": GOOD}, {"x": GOOD, "id": "b"}
    texts = [*map(json.dumps, (good, other, good | {"id": "c"})), json.dumps({"inptu": GOOD})]
    text = "\n".join(
        ["{", texts[0], "[1, 2]", texts[1], texts[2], texts[3], "", "[" * 999, texts[0]]
    )
    Path("in.jsonl").write_text(f"\ufeff{text}")
    assert bulk("double", "in.jsonl", "--format", "jsonl") == 0
    found = rows()
    assert [row["y"] for row in found] == [None, [2, 4], None, [2, 4], [2, 4], None, None, [2, 4]]
    assert [row["id"] for row in found] == ["0", "1", "2", "b", "c", "5", "6", "7"]
    assert found[0]["error"].startswith("the line is not JSON: ")
    assert found[2]["error"] == "the line is not a JSON object"
    assert found[5]["error"].startswith("the line has no column 'input' or 'x'; it has 'inptu'")
    assert found[6]["error"] == "the line has more than 200 bytes"
    assert [each["row"] for each in errors()] == [0, 2, 5, 6]


def test_damaged_csv_row_does_not_end_the_run(bulk: Bulk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "MAX_LINE_CHARACTERS", 3000)
    good = b'"[1, 2]",a,x\r\n'
    lines = [
        b"\xef\xbb\xbfinput,id,more\r\n",
        good + b'"[1, 2]",b\n' + b"[1, 2],c,\xff\n\n",  # not quoted: four cells
        b'"[1, 2]",d,\xff\n"[1, \xff2]",e,x\n"[1, 2]",\xe4,x\n',
        b'"[1,' + b" " * 2000 + b'2]",g,x\n"[1,' + b" " * 4000 + b'2]",h,x\n',
        b'"[1,\n 2]",i,"a ""b"""\n' + good + b'"[1, 2]",j,"x\n' + good[-4:],
    ]
    Path("in.csv").write_bytes(b"".join(lines))
    assert bulk("double", "in.csv", "--rows-per-shard", 4, "--max-bad", 1) == 0
    found = {row["id"]: row["error"] for row in rows()}
    assert found == {
        "a": None,
        "b": "the row has 2 cells, the header has 3",
        "c": "the row has 4 cells, the header has 3",
        "d": None,
        "e": "'input' is not UTF-8",
        "5": "'id' is not UTF-8",
        "g": None,
        "7": "the row has a line of more than 3000 characters",
        "i": None,
        "10": "the row has a quote that is not closed",
    }
    assert [row["y"] for row in rows() if row["error"] is None] == [[2, 4]] * 5
    # A quote that is lost joins two rows, which must not become a good one.
    Path("quote.csv").write_text('id,input,,\n1,"[1, 2],,\n2,"[3, 4]",,\n3,"[5, 6]",,\n')
    assert bulk("double", "quote.csv", out="quote") == 0
    first, last = rows("quote")
    assert first["error"].startswith("the row is not CSV: ")
    assert (last["id"], last["y"]) == ("3", [10, 12])
    Path("twice.csv").write_text("input,input\n1,2\n")
    assert bulk("double", "twice.csv", out="twice") == 1


@pytest.mark.parametrize(
    ("name", "text"), [("in.csv", 'input\n"[1, 2]"\n'), ("in.jsonl", '{"input": [1, 2]}\n')]
)
def test_other_encodings_are_named(
    bulk: Bulk, capsys: pytest.CaptureFixture[str], name: str, text: str
) -> None:
    Path(name).write_text(text, encoding="utf-16")
    assert bulk("double", name) == 1
    assert "it begins with the byte order mark of UTF-16; convert it to UTF-8" in (
        capsys.readouterr().err
    )
    Path(name).write_text(text, encoding="utf-8-sig")
    assert bulk("double", name) == 0
    assert rows()[0]["y"] == [2, 4]


def test_texts_with_invalid_utf_8(bulk: Bulk) -> None:
    octets = pa.array([b"cat", b"c\xe4t", None])
    texts = pa.Array.from_buffers(pa.string(), 3, octets.buffers())  # nothing looks at them
    pq.write_table(pa.table({"text": texts, "id": texts}), "in.parquet")
    assert bulk("topics", "in.parquet", "--max-bad", 1) == 0
    assert [row["id"] for row in rows()] == ["cat", "c\\xe4t", "2"]
    assert [each["row"] for each in errors()] == [1, 2]
    assert "UTF-8" in errors()[0]["reason"]


def test_max_errors_ends_the_run_until_raised(
    bulk: Bulk, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(pa.table({"input": [GOOD, [1.0], GOOD, [1.0, 2.0, 3.0]]}), "in.parquet")
    assert bulk("double", "in.parquet", "--rows-per-shard", 2, "--max-errors", 1) == 3
    assert "2 bad rows, --max-errors allows 1; see out/errors.parquet" in capsys.readouterr().err
    assert [each["row"] for each in errors()] == [1, 3]
    assert len(rows()) == 4
    assert manifest()["status"] == "too many errors"
    more = ("--rows-per-shard", 2, "--max-errors", 2, "--resume")
    assert bulk("double", "in.parquet", *more) == 0
    assert [row["y"] for row in rows()] == [[2, 4], None, [2, 4], None]
    assert [each["row"] for each in errors()] == [1, 3]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"input": {"picture": [0]}}', "expected exactly 'picture', 'shift', got 'picture'"),
        ('{"picture": [0]}', "the line has no column 'shift'; it has 'picture': the model needs "),
        ("{}", "the line has no column 'input', nor the columns 'picture', 'shift'; it has none"),
    ],
)
def test_missing_column_of_a_line_is_named(bulk: Bulk, text: str, reason: str) -> None:
    zeros = {"picture": np.zeros((1, 4, 4)).tolist(), "shift": [0.0]}
    Path("in.jsonl").write_text(f"{json.dumps(zeros)}\n{text}\n")
    assert bulk("small", "in.jsonl") == 0
    assert [row["error"] is None for row in rows()] == [True, False]
    assert errors()[0]["reason"].startswith(reason)


def test_name_of_a_file_that_is_a_url(bulk: Bulk) -> None:
    Path("in.jsonl").write_text(
        '{"input": "https://host/a.png"}\n{"input": {"path": "s3://b/a"}}\n'
    )
    assert bulk("pictures", "in.jsonl", "--workers", 0) == 1
    assert [each["reason"].partition(", ")[0] for each in errors()] == [
        "the file name is a URL: https:// is not supported",
        "the file name is a URL: s3:// is not supported",
    ]


def test_ids_between_inputs_are_not_guessed(bulk: Bulk) -> None:
    Path("in.csv").write_text("picture,id,shift\n[1,2],a,[0]\n")
    assert bulk("small", "in.csv") == 1
    assert [row["id"] for row in rows()] == ["0"]
