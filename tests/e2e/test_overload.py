"""The overload table as a user would make it, but shorter and with a faster model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.soak  # measures

COMMAND = (sys.executable, "-m", "loadtests", "overload", "--pure", "--models", "linear")
QUICK = ("--item-ms", "1", "--seconds", "0.5", "--loads", "0.5", "8", "--budget-s", "2")


def test_a_short_run_counts_outcomes_and_reports(tmp_path: Path) -> None:
    command = [*COMMAND, *QUICK]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "overload.json").read_text())
    assert [each["server"] for each in found["results"]] == ["Torchlane"]
    for each in found["results"]:
        assert each["capacity_per_s"] > 10
        assert [load["times"] for load in each["loads"]] == [0.5, 8.0]
        for trial in (load["trial"] for load in each["loads"]):
            counts = [trial[name] for name in ("in_time", "late", "refused", "errors", "wrong")]
            assert sum(counts) == trial["requests"] > 0
            assert trial["wrong"] == trial["errors"] == 0
    assert found["results"][0]["loads"][1]["trial"]["refused"] > 0
    assert "sustains" in (tmp_path / "overload.html").read_text()
