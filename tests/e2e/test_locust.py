"""The real `locust` command against real servers: what passes, and what must not."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

from PIL import Image

from loadtests.traffic.anchors import ANCHORS
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
    locustfile = str(ROOT / "loadtests" / "locustfile.py")
    return [
        *(str(LOCUST), "--headless", "--locustfile", locustfile, "--host", url),
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


def test_all_users_are_served_without_a_failure(repository: Path, tmp_path: Path) -> None:
    reports = ["--html", str(tmp_path / "a.html"), "--csv", str(tmp_path / "a")]
    reports += ["--plot", str(tmp_path / "plots" / "a.png")]
    with running(repository, tmp_path / "log", default_model="digits") as server:
        done = load(server.url, *users(14, 4), *reports)
    assert done.returncode == 0, done.stderr
    assert "all gates hold" in done.stderr
    assert (tmp_path / "a.html").read_text().startswith("<!")
    with Image.open(tmp_path / "plots" / "a.png") as picture:
        assert picture.format == "PNG"
    stats = rows(tmp_path / "a")
    for name in (*ALL_USERS, "Aggregated"):
        assert int(stats[name]["Request Count"]) > 0
        assert int(stats[name]["Failure Count"]) == 0


def test_users_of_no_use_to_a_model_are_left_out(repository: Path, tmp_path: Path) -> None:
    with running(repository, tmp_path / "log") as server:
        done = load(server.url, *users(4, 2), "--model", "pairwise", "--csv", str(tmp_path / "a"))
        none_left = load(server.url, *users(1, 2), "--model", "pairwise", "Images")
    assert done.returncode == 0, done.stderr
    assert "Images is left out: pairwise takes no pictures" in done.stderr
    assert "BinarySingles is left out: pairwise has several inputs" in done.stderr
    assert int(rows(tmp_path / "a")["batch-predict (Batches)"]["Request Count"]) > 0
    assert none_left.returncode == 1
    assert "none of these users can load 'pairwise'" in none_left.stderr


def test_a_shape_replaces_the_number_of_users_and_ends_the_run(tmp_path: Path) -> None:
    with listening(FakeServer()) as url:
        shape = ["--shape", "ramp", "--peak-users", "3", "--step-s", "2"]
        done = load(url, *shape, "--csv", str(tmp_path / "a"), "UniqueSingles")
    assert done.returncode == 0, done.stderr
    for users_then in (1, 2, 3):
        assert f"Shape test updating to {users_then} users" in done.stderr
    assert "Shape test updating to 4" not in done.stderr
    assert "all gates hold" in done.stderr


def test_a_broken_gate_fails_the_run_and_says_why(tmp_path: Path) -> None:
    gates = ["--fail-p99-ms", "0.1", "--fail-min-rps", "1000000"]
    with listening(FakeServer()) as url:
        done = load(url, *users(2, 2), *gates, "UniqueSingles")
    assert done.returncode == 1
    assert "at most 0.1 ms is allowed (--fail-p99-ms)" in done.stderr
    assert "at least 1e+06 are wanted (--fail-min-rps)" in done.stderr
    assert "--fail-ratio" not in done.stderr


def test_a_server_that_refuses_is_named_before_the_load(repository: Path, tmp_path: Path) -> None:
    with running(repository, tmp_path / "log", max_body_bytes="10") as server:
        done = load(server.url, *users(2, 2))
    assert done.returncode == 1
    assert "the idle server refused" in done.stderr
    assert "413 payload_too_large" in done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_to_load_fails_at_once() -> None:
    done = load(f"http://127.0.0.1:{free_port()}", *users(1, 30))
    assert done.returncode == 1
    assert "nothing listens at" in done.stderr
    assert "Traceback" not in done.stderr


def test_workers_judge_answers_and_their_master_decides(tmp_path: Path) -> None:
    fake = FakeServer(codec=LABELLED)
    with listening(fake) as url:
        right = distributed(url, tmp_path / "right")
        fake.lie = LiesUnderLoad(fake)
        wrong = distributed(url, tmp_path / "wrong")
    assert right.returncode == 0, right.stderr
    stats = rows(tmp_path / "right")["Aggregated"]
    assert int(stats["Request Count"]) > 100
    assert int(stats["Failure Count"]) == 0
    assert wrong.returncode == 1
    assert "(--fail-ratio)" in wrong.stderr
    assert "differs by about" in Path(f"{tmp_path / 'wrong'}_failures.csv").read_text()


def distributed(url: str, prefix: Path) -> subprocess.CompletedProcess[str]:
    """A master and two workers for five seconds; the workers first ask for anchors."""
    port = str(free_port())
    workers = [start_worker(port, Path(f"{prefix}-{number}.log")) for number in range(2)]
    try:
        master = ["--master", "--master-bind-host", "127.0.0.1", "--master-bind-port", port]
        master += ["--expect-workers", "2", "--expect-workers-max-wait", "30"]
        done = load(url, *master, *users(4, 5), "--csv", str(prefix), "UniqueSingles")
        for process in workers:
            process.wait(15)
        return done
    finally:
        for process in workers:
            if process.poll() is None:
                process.kill()
            process.wait()


def start_worker(port: str, log_file: Path) -> subprocess.Popen[bytes]:
    locustfile = str(ROOT / "loadtests" / "locustfile.py")
    worker = [str(LOCUST), "--worker", "--master-port", port, "--locustfile", locustfile]
    with log_file.open("wb") as log:
        return subprocess.Popen(worker, env=environment(), cwd=ROOT, stdout=log, stderr=log)


class LiesUnderLoad(AnswersOfTheOneBefore):
    """Answers what was asked before the load rightly, and all else as a broken server would."""

    def __init__(self, fake: FakeServer) -> None:
        super().__init__()
        self._fake = fake
        self._anchors = set(fake.bodies[:ANCHORS])

    def __call__(self, outputs: list[Array]) -> list[Array]:
        return outputs if self._fake.bodies[-1] in self._anchors else super().__call__(outputs)
