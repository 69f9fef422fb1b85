"""The bench runs as a user would run it, only shorter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_a_short_bench_checks_answers_and_writes_its_report(
    repository: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "loadtests.bench", "--rounds", "1", "--seconds", "0.3"]
    command += ["--artifacts", str(repository), "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "bench.json").read_text())
    assert report
    assert "torchlane answers" in " ".join(done.stdout.split())
