"""Bulk scoring as a process: killed and interrupted, and at full size."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.artifacts import write_artifact
from tests.e2e.forking import Piped
from tests.unit.app.bulk.conftest import digest, rows

ROOT = Path(__file__).parents[2]
SHARDS = ("--rows-per-shard", "10")


def command(folder: Path, *arguments: str) -> list[str]:
    model_dir = ("--model-dir", str(folder / "models"), "--devices", "cpu*2")
    return [sys.executable, "-m", "app.bulk", "double", *arguments, *model_dir]


def begun(folder: Path, *arguments: str) -> Piped:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return Piped(*command(folder, *arguments)[1:], environment=environment, folder=folder)


def in_session(session: int) -> list[str]:
    """The processes of a session that are left."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, fields = stat.read_text().rpartition(")")
            state, _, _, its_session = fields.split()[:4]
            if int(its_session) == session and state != "Z":
                found.append(name)
    return found


def is_over(session: int) -> bool:
    return not in_session(session)


def wait_for(found: Callable[[], object], seconds: float = 100) -> None:
    until = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < until
        time.sleep(0.02)


def has_lines(file: Path, count: int) -> bool:
    return file.exists() and file.read_text().count("\n") >= count


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_artifact(tmp_path / "models", "double")
    return tmp_path


@pytest.mark.slow
def test_a_killed_or_interrupted_run_resumes_without_loss(folder: Path) -> None:
    lines = [json.dumps({"input": [n, -n]}).encode() + b"\n" for n in range(80)]
    # What a process has written depends on what it was given: it waits for more. Of those that
    # decode each has two blocks ahead.
    for given, workers, how, code in (
        (75, 2, signal.SIGKILL, -9),
        (52, 0, signal.SIGINT, 130),
        (61, 0, signal.SIGTERM, 130),
        (80, 0, None, 0),
    ):
        resume = ["--resume"] * ((folder / "out").exists())
        options = ("--out", "out", *SHARDS, "--workers", str(workers), *resume)
        with begun(folder, "-", *options) as process:
            for line in lines[:given]:
                process.stdin.write(line)
            process.stdin.flush()
            if how is None:
                process.stdin.close()
            else:
                noted = folder / "out/progress.jsonl"
                wait_for(partial(has_lines, noted, 2 if workers else given // 10))
                process.send_signal(how)
            if how == signal.SIGINT:  # while it waits for standard input; and once more
                assert process.stderr.readline() == b"torchlane: interrupted, stopping\n"
                process.send_signal(how)
            told = process.stderr.read().decode()
            assert process.wait(60) == code, told
            wait_for(partial(is_over, process.pid), 20)
        if code == 130:
            assert "rows are done: to resume, repeat the command with --resume" in told
            assert "Fatal" not in told
    assert [(row["id"], row["y"]) for row in rows(folder / "out")] == [
        (str(n), [2 * n, -2 * n]) for n in range(80)
    ]
    assert sorted(digest(folder / "out")) == [f"part-0000{n}.parquet" for n in range(8)]


@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_ten_random_kills_do_not_change_the_output(folder: Path) -> None:
    rng, moments = np.random.default_rng(0), random.Random(0)
    numbers = rng.random((1_200_000, 2), dtype=np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(numbers.reshape(-1)), 2)
    pq.write_table(pa.table({"input": column}), folder / "in.parquet")
    shards = ("--rows-per-shard", "8000")  # 150 of them, of which a kill waits for 12 at most
    with begun(folder, "in.parquet", "--out", "whole", *shards) as whole:
        assert whole.wait(1000) == 0
    noted = folder / "out/progress.jsonl"
    for _ in range(10):
        done = noted.read_text().count("\n") if noted.exists() else 0
        with begun(folder, "in.parquet", "--out", "out", *shards, "--resume") as process:
            wait_for(partial(has_lines, noted, done + moments.randint(0, 12)), 500)
            time.sleep(moments.uniform(0, 0.3))
            assert process.poll() is None
            process.kill()
    with begun(folder, "in.parquet", "--out", "out", *shards, "--resume") as last:
        assert last.wait(1000) == 0
    assert len(digest(folder / "out")) == 150
    assert digest(folder / "out") == digest(folder / "whole")


@pytest.mark.soak
def test_full_shared_memory_ends_the_run(folder: Path) -> None:
    def limit_files() -> None:  # as a full /dev/shm does, but for this process only
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    lines = (json.dumps({"input": [n, -n]}) for n in range(2000))
    (folder / "in.jsonl").write_text("\n".join(lines))
    done = subprocess.run(
        command(folder, "in.jsonl", "--out", "out", "--workers", "1"),
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        preexec_fn=limit_files,
    )
    assert done.returncode == 1, done.stderr
    assert "does not fit into shared memory" in done.stderr
    assert "Traceback" not in done.stderr
