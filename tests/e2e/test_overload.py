"""The overload table as a user would make it, but shorter and with a faster model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.test_bench import commands_of

COMMAND = (sys.executable, "-m", "loadtests", "overload", "--pure", "--models", "linear")
QUICK = ("--item-ms", "1", "--seconds", "0.5", "--loads", "0.5", "8", "--budget-s", "2")


def test_a_short_run_counts_outcomes_and_reports(tmp_path: Path) -> None:
    command = [*COMMAND, *QUICK, "--servers", "torchlane"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "overload.json").read_text())
    assert [each["server"] for each in found["results"]] == ["torchlane"]
    for each in found["results"]:
        assert each["capacity_per_s"] > 10
        assert [load["times"] for load in each["loads"]] == [0.5, 8.0]
        for trial in (load["trial"] for load in each["loads"]):
            counts = [trial[name] for name in ("in_time", "late", "refused", "errors", "wrong")]
            assert sum(counts) == trial["requests"] > 0
            assert trial["wrong"] == trial["errors"] == 0
    assert found["results"][0]["loads"][1]["trial"]["refused"] > 0
    [wrong] = [line for line in found["acceptance"] if line["what"] == "wrong answers"][:1]
    assert wrong["verdict"] == "met"
    assert "goodput at 4x" in (tmp_path / "overload.html").read_text()


@pytest.mark.soak
def test_ctrl_c_stops_the_run_and_its_servers(tmp_path: Path) -> None:
    command = [*COMMAND, "--servers", "plain_fastapi", "--seconds", "600", "--item-ms", "1"]
    mark = f"overload-{os.getpid()}"  # all that it starts inherits it
    with subprocess.Popen(
        [*command, "--out", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "BENCH_TEST_MARK": mark},
    ) as running:
        deadline = time.monotonic() + 90
        while not any("server.py" in each for each in commands_of(mark)):
            assert running.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        _, told = running.communicate(timeout=60)
    assert running.returncode == 130, told.decode()
    assert b"interrupted" in told
    assert list(commands_of(mark)) == []
