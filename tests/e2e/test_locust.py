"""The real `locust` command against real servers: runs that pass, and runs that must fail."""

from __future__ import annotations

import contextlib
import csv
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.access.entries import make_key
from loadtests.__main__ import main
from loadtests.traffic.credentials import VARIABLE
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
        *(str(LOCUST), "--headless", "--locustfile", str(LOCUSTFILE), "--host", url),
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
def test_users_that_cannot_load_a_model_are_omitted(repository: Path, tmp_path: Path) -> None:
    with running(repository, tmp_path / "log", default_model="digits") as server:
        done = load(server.url, *users(4, 2), "--model", "pairwise", "--csv", str(tmp_path / "a"))
        none_left = load(server.url, *users(1, 2), "--model", "pairwise", "Images")
    assert done.returncode == 0, done.stderr
    assert "Images is left out: pairwise accepts no pictures" in done.stderr
    assert "BinarySingles is left out: pairwise has several inputs" in done.stderr
    assert int(rows(tmp_path / "a")["batch-predict (Batches)"]["Request Count"]) > 0
    assert none_left.returncode == 1
    assert "none of these users can load 'pairwise'" in none_left.stderr


@pytest.mark.soak
def test_a_missed_gate_fails_the_run() -> None:
    gates = ["--fail-p99-ms", "0.1", "--fail-min-rps", "1000000"]
    shape = ["--shape", "ramp", "--peak-users", "2", "--step-s", "2"]
    with listening(FakeServer()) as url:
        done = load(url, *shape, *gates, "UniqueSingles")
    assert "Shape test updating to 2 users" in done.stderr
    assert done.returncode == 1
    assert "at most 0.1 ms is allowed (--fail-p99-ms)" in done.stderr
    assert "at least 1e+06 are required (--fail-min-rps)" in done.stderr
    assert "--fail-ratio" not in done.stderr


@pytest.mark.soak
def test_a_server_that_rejects_references_fails_the_run(repository: Path, tmp_path: Path) -> None:
    with running(
        repository, tmp_path / "log", default_model="digits", max_body_bytes="10"
    ) as server:
        done = load(server.url, *users(2, 2))
    assert done.returncode == 1
    assert "the idle server refused" in done.stderr
    assert "413 payload_too_large" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.soak
def test_the_key_comes_from_the_environment(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, line = make_key("load", ["predict"])
    report = tmp_path / "a.html"
    with running(repository, tmp_path / "log", default_model="digits", api_keys=line) as server:
        rejected = load(server.url, *users(1, 1))
        monkeypatch.setenv(VARIABLE, key)
        done = load(server.url, *users(7, 2), "--html", str(report))
        trial = ["--rate", "50", "--seconds", "1", "--out", str(tmp_path / "run")]
        assert main(["run", "--url", server.url, *trial, "--fail-ratio", "0"]) == 0
    assert rejected.returncode == 1
    assert "requires an API key, and answered 401: put a key" in rejected.stderr
    assert done.returncode == 0, done.stderr
    written = [each for each in (tmp_path / "run").iterdir() if each.is_file()]
    told = [done.stdout, done.stderr, *(each.read_bytes().decode("latin-1") for each in written)]
    assert key not in "".join((*told, report.read_text()))


@pytest.mark.soak
def test_an_unreachable_server_fails_immediately() -> None:
    done = load(f"http://127.0.0.1:{free_port()}", *users(1, 30))
    assert done.returncode == 1
    assert "nothing listens at" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.soak
def test_a_url_that_is_no_server_is_refused_before_the_run() -> None:
    done = load(f"127.0.0.1:{free_port()}", *users(1, 30))
    assert done.returncode == 1
    assert "it has no scheme; try http://127.0.0.1:" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.soak
def test_forked_workers_send_each_input_once(
    tmp_path: Path,
) -> None:
    fake = FakeServer()
    port = str(free_port())
    forked = ["--processes", "2", "--master-bind-host", "127.0.0.1"]
    forked += ["--master-bind-port", port, "--master-port", port]
    with listening(fake) as url:
        shape = ["--shape", "ramp", "--peak-users", "2", "--step-s", "1"]
        done = load(url, *forked, *shape, "--csv", str(tmp_path / "a"), "UniqueSingles")
    assert done.returncode == 0, done.stderr
    assert "Shape test updating to 2 users" in done.stderr
    stats = rows(tmp_path / "a")["Aggregated"]
    assert int(stats["Request Count"]) > 100
    assert int(stats["Failure Count"]) == 0
    # The master asks twice, before and after its workers have come; workers do not ask at all.
    references, loaded = fake.bodies[: 2 * REFERENCES], fake.bodies[2 * REFERENCES :]
    assert references[:REFERENCES] == references[REFERENCES:]
    assert len(set(references)) == REFERENCES
    assert len(loaded) >= int(stats["Request Count"])
    assert len(set(loaded) - set(references)) == len(loaded)


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


@pytest.mark.soak
def test_a_worker_with_other_inputs_ends_the_run(tmp_path: Path) -> None:
    stranger = tmp_path / "stranger.py"  # as a worker of another release would be
    stranger.write_text(
        "from loadtests.traffic import reference_inputs\n\nreference_inputs.SEED = 1\n"
        "from loadtests.locustfile import *\n"
    )
    with listening(FakeServer()) as url, workers(tmp_path, LOCUSTFILE, stranger) as port:
        done = master(url, port, *users(4, 30))
    assert done.returncode == 1
    assert "cannot load: this worker draws other items than its master" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.soak
def test_a_lost_worker_fails_the_run(tmp_path: Path) -> None:
    fake = FakeServer()
    with listening(fake) as url, workers(tmp_path, LOCUSTFILE) as port:
        lost = start_worker(port, LOCUSTFILE, tmp_path / "lost.log")
        ender = threading.Thread(target=end_under_load, args=(lost, fake))
        ender.start()
        try:
            done = master(url, port, *users(2, 3))
        finally:
            ender.join()
    assert done.returncode == 1
    assert "1 of 2 workers dropped out" in done.stderr
    assert "gate:" not in done.stderr


def end_under_load(process: subprocess.Popen[bytes], fake: FakeServer) -> None:
    """End a worker as soon as there is load, or after a while in any case."""
    deadline = time.monotonic() + LIMIT_S / 2
    while len(fake.bodies) <= 2 * REFERENCES and time.monotonic() < deadline:
        time.sleep(0.05)
    process.terminate()
    try:
        process.wait(15)
    finally:
        process.kill()
        process.wait()


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
