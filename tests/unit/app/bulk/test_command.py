"""What is wrong with a command is one sentence, and an exit code."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.bulk import command
from app.bulk.errors import UsageError
from app.bulk.model import open_artifact
from app.registry.repository import Repository
from app.serving.version_policy import VersionPolicy
from tests.unit.app.bulk.conftest import Bulk, manifest, rows


def other_columns() -> None:
    pq.write_table(pa.table({"pixels": [[1.0, 2.0]], "y": [1]}), "in.parquet")


def no_rows() -> None:
    pq.write_table(pa.table({"input": pa.array([], pa.list_(pa.float32()))}), "in.parquet")


def other_types() -> None:
    Path("in.parquet").mkdir()
    pq.write_table(pa.table({"input": [[1.0, 2.0]]}), "in.parquet/1.parquet")
    pq.write_table(pa.table({"input": ["[1, 2]"]}), "in.parquet/2.parquet")


def other_ids() -> None:
    pq.write_table(pa.table({"input": [[1.0, 2.0]], "id": [b"a"]}), "in.parquet")


def mixed() -> None:
    Path("in.parquet").mkdir()
    other_columns_at = Path("in.parquet/1.csv")
    other_columns_at.write_text("input\n1\n")
    Path("in.parquet/2.jsonl").write_text("{}")


def two_of_a_name() -> None:
    columns = [pa.array([[1.0, 2.0]])] * 2
    pq.write_table(pa.Table.from_arrays(columns, names=["input", "input"]), "in.parquet")


def archive() -> None:
    np.savez("in.npz", a=np.zeros(2))
    Path("in.npz").rename("in.npy")


def one_row() -> None:
    np.save("in.npy", np.zeros((1, 2), np.float32))


def column(kind: pa.DataType, *values: object) -> Callable[[], None]:
    """A Parquet file with one column of a type."""

    def write() -> None:
        pq.write_table(pa.table({"input": pa.array(values, kind)}), "in.parquet")

    return write


def cut_off() -> None:
    pq.write_table(pa.table({"input": [[1.0, 2.0]] * 5000}), "whole.parquet", use_dictionary=False)
    data = bytearray(Path("whole.parquet").read_bytes())
    data[200:2000] = b"\xff" * 1800
    Path("in.parquet").write_bytes(data)


WRONG: list[tuple[Callable[[], object], list[str], int, str]] = [
    (bool, ["nope", "in.parquet"], 2, "in.parquet does not exist"),
    (
        other_columns,
        ["nope", "in.parquet"],
        2,
        "has no model 'nope'; it has ages, cities, double, gaps, ",
    ),
    (other_columns, ["double", "in.parquet", "--version", "9"], 2, "no version 9; it has 1"),
    (other_columns, ["double", "in.parquet"], 1, "no column 'input' or 'x'; it has 'pixels', 'y'"),
    (other_columns, ["double", "in.parquet", "--top-k", "2"], 2, "--top-k: top_k selects scores"),
    (other_columns, ["double", "in.parquet", "--variant", "int8"], 2, "no variant 'int8'"),
    (other_columns, ["double", "in.parquet", "--precision", "fp4"], 2, "--plan-precision 'fp4'"),
    (other_columns, ["double", "in.parquet", "--max-bad", "50"], 2, "must be a share from 0 to 1"),
    (bool, ["double", f"{'x' * 300}.csv"], 2, "does not exist or may not be read"),
    (bool, ["double", "*.none"], 2, "no file matches *.none"),
    (bool, ["double", "."], 2, "the folder . has no file that can be read"),
    (bool, ["double", "-", "in.csv"], 2, "- is standard input, and cannot be combined"),
    (lambda: Path("in.txt").touch(), ["double", "in.txt"], 2, "has no format that can be read"),
    (bool, ["double", "s3://bucket/in.csv"], 2, "the input s3:// is not supported, only local"),
    (bool, ["double", "in.csv", "--out", "s3://b/o"], 2, "argument --out: s3:// is not supported"),
    (mixed, ["double", "in.parquet"], 2, "the inputs have several formats"),
    (lambda: Path("in.parquet").touch(), ["double", "in.parquet"], 1, "cannot be read as Parquet"),
    (cut_off, ["double", "in.parquet"], 1, "in.parquet is damaged"),
    (other_ids, ["double", "in.parquet"], 1, "the ids in 'id' are binary, expected whole numbers"),
    (no_rows, ["double", "in.parquet"], 1, "the input has no rows"),
    (column(pa.float32(), 1.0), ["double", "in.parquet"], 1, "has the type float, but 'x' needs"),
    (
        column(pa.list_(pa.bool_()), [True, False]),
        ["double", "in.parquet"],
        1,
        "has the type list<",
    ),
    (column(pa.date32(), 1), ["double", "in.parquet"], 1, "has the type date32[day], but"),
    (other_types, ["double", "in.parquet"], 1, "score them separately, or convert one"),
    (lambda: np.save("in.npy", np.zeros((3, 5))), ["double", "in.npy"], 1, "got shape [5]"),
    (lambda: np.save("in.npy", np.array(["a"])), ["double", "in.npy"], 1, "expected numbers"),
    (lambda: Path("in.npy").touch(), ["double", "in.npy"], 1, "in.npy cannot be read as .npy"),
    (archive, ["double", "in.npy"], 1, "in.npy has several arrays (.npz)"),
    (two_of_a_name, ["double", "in.parquet"], 1, "duplicate columns 'input': rename or drop them"),
    (one_row, ["double", "in.npy", "--id-column", "x"], 2, "--id-column: .npy files have no colum"),
    (one_row, ["double", "in.npy", "./in.npy"], 2, "in.npy is given twice"),
    (lambda: Path("in.csv").touch(), ["double", "in.csv"], 1, "cannot be read as CSV"),
    (lambda: Path("in.jsonl").write_text("no"), ["double", "in.jsonl"], 1, "is not JSON"),
]


@pytest.mark.parametrize(("prepare", "arguments", "code", "sentence"), WRONG)
def test_errors_are_one_line(
    bulk: Bulk,
    capsys: pytest.CaptureFixture[str],
    prepare: Callable[[], object],
    arguments: list[str],
    code: int,
    sentence: str,
) -> None:
    prepare()
    try:
        ended = bulk(*arguments)
    except SystemExit as exit_:  # by argparse
        ended = int(str(exit_.code))
    told = capsys.readouterr().err
    assert sentence in told
    assert told.startswith("torchlane: ")
    assert (ended, told.count("\n")) == (code, 1)
    assert not [each for each in Path().iterdir() if each.name.endswith(":")]  # such as ./s3:


def test_closed_standard_streams(
    bulk: Bulk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one_row()
    monkeypatch.setattr(sys, "stdin", None)
    assert bulk("double", "-") == 2
    assert "- is standard input, which is closed" in capsys.readouterr().err
    assert bulk("double", "in.npy") == 0
    reads, writes = os.pipe()
    os.close(reads)
    with monkeypatch.context() as patched, open(writes, "w") as nobody:
        patched.setattr(sys, "stderr", nobody)
        assert bulk("double", "in.npy", out="other") == 0
        with contextlib.suppress(BrokenPipeError):
            nobody.close()
    monkeypatch.setattr(sys, "stderr", None)
    assert bulk("double", "in.npy", out="third") == 0
    sys.stderr.close()


def test_missing_extra_is_a_one_line_error(
    bulk: Bulk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "PACKAGES", ("pyarrow", "not_there"))
    assert bulk("double", "-") == 2
    assert "(not_there): pip install 'torchlane[bulk]'" in capsys.readouterr().err


def test_options_choose_columns_and_rows(bulk: Bulk, capsys: pytest.CaptureFixture[str]) -> None:
    table = {"pixels": [[float(n), 0.0] for n in range(9)], "name": [n * 10 for n in range(9)]}
    pq.write_table(pa.table(table), "in.parquet")
    columns = ("--input-column", "pixels", "--id-column", "name")
    assert bulk("double", "in.parquet", *columns, "--limit", 7, "--rows-per-shard", 3) == 0
    assert [(row["id"], row["y"][0]) for row in rows()] == [(n * 10, n * 2) for n in range(7)]
    assert [shard["rows"] for shard in manifest()["shards"]] == [3, 3, 1]
    assert "7 rows in" in capsys.readouterr().err


@pytest.mark.parametrize("below", [".", "m"])
def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path, below: str) -> None:
    (tmp_path / "m").symlink_to("x" * 300)
    policy = VersionPolicy.parse("latest")
    with pytest.raises(UsageError, match=r"/m.* cannot be read: File name too long"):
        open_artifact(Repository(tmp_path / below), policy, "m", None)
