"""The bench runs as a user would run it, only shorter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.soak  # measures

COMMAND = (sys.executable, "-m", "loadtests", "bench", "--rounds", "1", "--seconds", "1")


def test_a_short_bench_checks_answers_and_reports(repository: Path, tmp_path: Path) -> None:
    asked = ["--servers", "plain_fastapi", "--workloads", "json-32", "--pure"]
    command = [*COMMAND, *asked, "--artifacts", str(repository), "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "bench.json").read_text())
    [workload] = report["workloads"].values()
    servers = workload["servers"]
    assert set(servers) == {"torchlane", "plain_fastapi"}
    assert all(each["requests_per_s"]["median"] > 0 for each in servers.values())
    assert servers["plain_fastapi"]["ours_over_theirs"]["requests_per_s"]["median"] > 0
    assert report["stalled"]["median"] >= 0
    assert "plain FastAPI" in (tmp_path / "bench.html").read_text()
