"""The bench runs as a user would run it, only shorter."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

COMMAND = (sys.executable, "-m", "loadtests", "bench", "--rounds", "1", "--seconds", "1")


def test_a_short_bench_checks_answers_and_reports(repository: Path, tmp_path: Path) -> None:
    asked = ["--servers", "plain_fastapi", "--workloads", "json-32", "--pure"]
    command = [*COMMAND, *asked, "--artifacts", str(repository), "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "bench.json").read_text())
    assert list(report["workloads"]) == ["json-32"]
    servers = report["workloads"]["json-32"]["servers"]
    assert set(servers) == {"torchlane", "plain_fastapi"}
    assert all(each["requests_per_s"]["median"] > 0 for each in servers.values())
    [turns] = report["workloads"]["json-32"]["rounds"]
    assert min(run["checked"] for run in turns.values()) > 8  # under load
    assert report["stalled"]["median"] >= 0
    judged = {(line["of"], line["what"]): line["verdict"] for line in report["acceptance"]}
    assert judged["json-32", "over plain FastAPI"] != "not measured"
    assert judged["json-32", "over mosec"] == "not measured"
    assert "acceptance" in (tmp_path / "bench.html").read_text()


@pytest.mark.soak
def test_a_cold_start_reports_its_parts(repository: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "loadtests", "cold-start", "--rounds", "1", "--pure"]
    asked = ["--artifacts", str(repository), "--out", str(tmp_path)]
    done = subprocess.run([*command, *asked], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "cold-start.json").read_text())
    parts = {name: each["median"] for name, each in report["parts"].items()}
    assert parts["interpreter"] < parts["import of torch"] < parts["ready"]
    assert 0 < parts["first answer"] < parts["ready"]
    assert report["cpu"]["ready"]["median"] > report["cpu"]["import of torch"]["median"]
    assert report["acceptance"][0]["measured"] == f"{parts['ready'] / 1000:.2f} s"


@pytest.mark.soak
@pytest.mark.parametrize(
    ("number", "during"),
    [
        (signal.SIGINT, "-m app"),
        (signal.SIGTERM, "server.py"),  # ours sleeps already: it cannot end by itself
    ],
)
def test_a_signal_stops_the_bench_and_its_servers(
    repository: Path, tmp_path: Path, number: signal.Signals, during: str
) -> None:
    asked = ["--servers", "bare_asgi", "--workloads", "json-32", "--seconds", "600", "--pure"]
    command = [*COMMAND, *asked, "--artifacts", str(repository), "--out", str(tmp_path)]
    mark = f"bench-{os.getpid()}-{number}"  # all that it starts inherits it
    environment = {**os.environ, "BENCH_TEST_MARK": mark}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as bench:
        deadline = time.monotonic() + 90
        while not any(during in each for each in commands_of(mark)):
            assert bench.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        bench.send_signal(number)
        _, told = bench.communicate(timeout=60)
        assert bench.returncode == 128 + number, told.decode()
    assert list(commands_of(mark)) == []


def commands_of(mark: str) -> Iterator[str]:
    """The command lines of processes that were started under this mark."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if command:  # none of those that have ended
                    yield command
        except OSError:
            continue  # it has ended meanwhile, or belongs to another user
