"""The real `locust` command against real servers: runs that pass, and runs that must fail."""

from __future__ import annotations

import contextlib
import csv
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtests.traffic.reference_inputs import REFERENCES
from models.tensors import Array
from tests.e2e.server import free_port, running
from tests.unit.loadtests.traffic.fake_server import (
    LABELLED,
    AnswersOfTheOneBefore,
    FakeServer,
    listening,
)

LOCUST = Path(sys.executable).parent / "locust"
ROOT = Path(__file__).parents[2]
LOCUSTFILE = ROOT / "loadtests" / "locustfile.py"
LIMIT_S = 60
ALL_USERS = (
    "predict (UniqueSingles)",
    "predict (RepeatedSingles)",
    "batch-predict (Batches)",
    "predict (BinarySingles)",
    "predict (NpySingles)",
    "predict (Images)",
    "predict (MixedWithBadInput)",
)


def command(url: str, *arguments: str) -> list[str]:
    return [
        *(sys.executable, "-m", "loadtests", "locust", "--headless", "--host", url),
        *("--stop-timeout", "5", "--only-summary", *arguments),
    ]


def environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k != "TORCHLANE_LOAD_MODEL"}


def load(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(url, *arguments),
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def users(count: int, seconds: int) -> list[str]:
    return ["--users", str(count), "--spawn-rate", str(count), "--run-time", f"{seconds}s"]


def rows(prefix: Path) -> dict[str, dict[str, str]]:
    with Path(f"{prefix}_stats.csv").open() as file:
        return {row["Name"]: row for row in csv.DictReader(file)}


def test_all_user_classes_run_without_a_failure(repository: Path, tmp_path: Path) -> None:
    reports = ["--html", str(tmp_path / "a.html"), "--csv", str(tmp_path / "a")]
    with running(repository, tmp_path / "log", default_model="digits") as server:
        done = load(f"{server.url}/", *users(14, 3), *reports)  # as the server prints its address
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "all gates hold" in done.stderr
    assert (tmp_path / "a.html").read_text().startswith("<!")
    stats = rows(tmp_path / "a")
    for name in (*ALL_USERS, "Aggregated"):
        assert int(stats[name]["Request Count"]) > 0
        assert int(stats[name]["Failure Count"]) == 0


@pytest.mark.soak
def test_workers_check_answers_and_the_master_applies_gates(tmp_path: Path) -> None:
    fake = FakeServer(codec=LABELLED)
    fake.lie = LiesUnderLoad(fake)
    with listening(fake) as url, workers(tmp_path, LOCUSTFILE, LOCUSTFILE) as port:
        done = master(url, port, *users(4, 3), "--csv", str(tmp_path / "a"))
    assert done.returncode == 1
    assert int(rows(tmp_path / "a")["Aggregated"]["Request Count"]) > 100
    assert "(--fail-ratio)" in done.stderr
    assert "cannot load" not in done.stderr
    assert "dropped out" not in done.stderr
    assert "differs by about" in (tmp_path / "a_failures.csv").read_text()


def master(url: str, port: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A master of two workers, to its end."""
    options = ["--master", "--master-bind-host", "127.0.0.1", "--master-bind-port", port]
    options += ["--expect-workers", "2", "--expect-workers-max-wait", "30"]
    return load(url, *options, *arguments, "UniqueSingles")


@contextlib.contextmanager
def workers(directory: Path, *locustfiles: Path) -> Iterator[str]:
    """Workers whose master is to listen at this port; they end with it."""
    port = str(free_port())
    started = [
        start_worker(port, locustfile, directory / f"worker-{number}.log")
        for number, locustfile in enumerate(locustfiles)
    ]
    try:
        yield port
        for process in started:
            process.wait(15)
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
            process.wait()


def start_worker(port: str, locustfile: Path, log_file: Path) -> subprocess.Popen[bytes]:
    worker = [str(LOCUST), "--worker", "--master-port", port, "--locustfile", str(locustfile)]
    with log_file.open("wb") as log:
        return subprocess.Popen(worker, env=environment(), cwd=ROOT, stdout=log, stderr=log)


class LiesUnderLoad(AnswersOfTheOneBefore):
    """Answers the master's first requests correctly, and later ones like a broken server."""

    def __init__(self, fake: FakeServer) -> None:
        super().__init__()
        self._fake = fake

    def __call__(self, outputs: list[Array]) -> list[Array]:
        return outputs if len(self._fake.bodies) <= 2 * REFERENCES else super().__call__(outputs)
