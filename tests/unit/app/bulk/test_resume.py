"""An interrupted run goes on where it was, and ends with the same bytes."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from app.bulk import state
from tests.unit.app.bulk.conftest import Bulk, digest, manifest, rows

ROWS = 64
SHARDS = ("--rows-per-shard", 10)


@pytest.fixture
def numbers(bulk: Bulk) -> str:
    np.save("in.npy", np.arange(2 * ROWS, dtype=np.float32).reshape(ROWS, 2) / 2)
    return "in.npy"


def full_at(shard: int) -> Path:
    """Let the disk be full when this shard is written."""
    Path("out").mkdir(exist_ok=True)
    device = Path(f"out/.part-{shard:05d}.parquet.tmp")
    device.symlink_to("/dev/full")
    return device


def stream(inputs: Iterable[list[int]]) -> io.TextIOWrapper:
    """Standard input of JSON Lines."""
    lines = (json.dumps({"input": each}) for each in inputs)
    return io.TextIOWrapper(io.BytesIO("\n".join(lines).encode()))


@pytest.mark.parametrize("shard", [0, 3])
def test_a_full_disk_loses_nothing(
    bulk: Bulk, numbers: str, shard: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bulk("double", numbers, *SHARDS, out="whole") == 0
    full_at(shard)
    assert bulk("double", numbers, *SHARDS) == 1
    assert "no space is left for out: free some, then continue" in capsys.readouterr().err
    assert sorted(each.name for each in Path("out").glob("*part*")) == [
        f"part-{each:05d}.parquet" for each in range(shard)
    ]
    assert manifest()["status"] == "running"
    assert bulk("double", numbers, *SHARDS, "--resume") == 0
    assert digest() == digest("whole")
    assert manifest()["rows"] == ROWS
    assert bulk("double", numbers, *SHARDS, "--resume") == 0
    assert "is already finished" in capsys.readouterr().err
    Path("out/part-00001.parquet").unlink()
    assert bulk("double", numbers, *SHARDS, "--resume") == 1
    assert "out/part-00001.parquet has changed since it was written" in capsys.readouterr().err


def test_unrecorded_shard_is_written_again(bulk: Bulk, numbers: str) -> None:
    full_at(4)
    assert bulk("double", numbers, *SHARDS) == 1
    journal = Path("out/progress.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:-1]) + lines[-1][:20])  # as a crash may leave it
    assert bulk("double", numbers, *SHARDS, "--resume") == 0
    assert [row["id"] for row in rows()] == list(range(ROWS))


def test_resumed_stream_must_be_the_same(
    bulk: Bulk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lines(second: int) -> io.TextIOWrapper:
        return stream([number, second] for number in range(25))

    monkeypatch.setattr(sys, "stdin", lines(0))
    assert bulk("double", "-", *SHARDS, out="whole") == 0
    full_at(1)
    monkeypatch.setattr(sys, "stdin", lines(0))
    assert bulk("double", "-", *SHARDS) == 1
    monkeypatch.setattr(sys, "stdin", lines(1))
    assert bulk("double", "-", *SHARDS, "--resume") == 1
    assert "standard input differs from what was read before" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", lines(0))
    assert bulk("double", "-", *SHARDS, "--resume") == 0
    assert digest() == digest("whole")


def test_one_process_at_a_time(
    bulk: Bulk, numbers: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with state.lock(Path("out")):
        monkeypatch.setattr(state, "find", None)  # what another one may yet change is not looked at
        assert bulk("double", numbers) == 2
    assert "another process is using out" in capsys.readouterr().err


def test_changed_options_are_named(
    bulk: Bulk, numbers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    full_at(2)
    assert bulk("double", numbers, *SHARDS) == 1
    for arguments, sentence in (
        (["double", numbers, *SHARDS], "out is not empty: choose another folder, or continue"),
        (["double", numbers, "--resume"], "another options.rows_per_shard: 10, now 65536"),
        (["double", numbers, *SHARDS, "--resume", "--batch", 2], "another batch: 64, now 2"),
        (["small", numbers, *SHARDS, "--resume"], "use Parquet with a column for each"),
    ):
        assert bulk(*arguments) in (1, 2)
        assert sentence in capsys.readouterr().err
    np.save("in.npy", np.zeros((ROWS, 2), np.float32))
    assert bulk("double", numbers, *SHARDS, "--resume") == 2
    assert "in.npy has changed since the run began" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["[1]", "{}", '{"status": "finished"}', "nothing"])
def test_manifest_of_another_program(
    bulk: Bulk, numbers: str, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    Path("out").mkdir()
    Path("out/manifest.json").write_text(text)
    assert bulk("double", numbers, "--resume") == 2
    assert "out has no readable manifest.json: no run to resume" in capsys.readouterr().err


def test_repaired_files_leave_no_errors(bulk: Bulk) -> None:
    Path("in.csv").write_text("input\na.png\n")
    given = ("pictures", "in.csv", "--workers", 0)
    assert bulk(*given, "--max-errors", 0) == 3
    assert Path("out/errors.parquet").exists()
    Image.new("L", (8, 8)).save("a.png")
    assert bulk(*given, "--resume") == 0
    assert not Path("out/errors.parquet").exists()


def test_stream_that_ended_inside_a_shard(
    bulk: Bulk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lines(count: int) -> io.TextIOWrapper:
        return stream([1] * (1 + (number != 24)) for number in range(count))

    Path("out").mkdir()
    Path("out/.errors.parquet.tmp").symlink_to("/dev/full")
    monkeypatch.setattr(sys, "stdin", lines(25))
    assert bulk("double", "-", *SHARDS) == 1
    monkeypatch.setattr(sys, "stdin", lines(60))
    assert bulk("double", "-", *SHARDS, "--resume") == 1
    assert "standard input had ended after 25 rows but now continues" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", lines(24))
    assert bulk("double", "-", *SHARDS, "--resume") == 1
    assert "standard input differs from what was read before" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", lines(25))
    assert bulk("double", "-", *SHARDS, "--resume") == 0
    assert len(rows()) == 25
