"""The real `locust` command against a real server: what passes, and what must not."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

from tests.e2e.server import Server, running

LOCUST = Path(sys.executable).parent / "locust"
ROOT = Path(__file__).parents[2]


def load(server: Server, reports: Path) -> subprocess.CompletedProcess[str]:
    """As `make load` does it, for three seconds."""
    command = (
        f"{LOCUST} --headless --locustfile {ROOT / 'loadtests' / 'locustfile.py'} "
        f"--host {server.url} --users 6 --spawn-rate 6 --run-time 3s --stop-timeout 5 "
        f"--only-summary --html {reports / 'load.html'} --csv {reports / 'load'}"
    )
    environment = {k: v for k, v in os.environ.items() if k != "TORCHLANE_LOAD_MODEL"}
    return subprocess.run(
        command.split(),
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def rows(reports: Path) -> dict[str, dict[str, str]]:
    with (reports / "load_stats.csv").open() as file:
        return {row["Name"]: row for row in csv.DictReader(file)}


def test_all_users_are_served_without_a_failure(repository: Path, tmp_path: Path) -> None:
    with running(repository, tmp_path / "log") as server:
        done = load(server, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "load.html").read_text().startswith("<!")
    stats = rows(tmp_path)
    for name in (
        "predict (UniqueSingles)",
        "predict (RepeatedSingles)",
        "batch-predict (BatchesWithDuplicates)",
        "Aggregated",
    ):
        assert int(stats[name]["Request Count"]) > 0
        assert int(stats[name]["Failure Count"]) == 0


def test_errors_of_the_server_are_failures_of_the_run(repository: Path, tmp_path: Path) -> None:
    with running(repository, tmp_path / "log", max_body_bytes="10") as server:
        done = load(server, tmp_path)
    assert done.returncode == 1, done.stderr
    total = rows(tmp_path)["Aggregated"]
    assert int(total["Failure Count"]) > 0
    assert "413" in (tmp_path / "load_failures.csv").read_text()
