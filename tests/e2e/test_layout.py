"""The server measures its CPU layout at start: its choice, and a stop meanwhile."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import httpx
import pytest

from models.system.resources import usable_cores
from tests.e2e.server import PLAIN, free_port, running, start_process

pytestmark = pytest.mark.skipif(usable_cores() < 2, reason="on one core there is no choice")


@pytest.mark.soak
def test_the_chosen_layout_is_logged_and_used(models: Path, tmp_path: Path) -> None:
    with running(models, tmp_path / "log", devices="auto") as server:
        (told,) = server.events("cpu_layout_measured")
        found = httpx.get(f"{server.url}/models/double?full=true", verify=PLAIN).json()
        assert len(found["replicas"]) == int(told["chosen"].partition(" x ")[0])
        answer = httpx.post(f"{server.url}/predict", json={"input": [3, 4]}, verify=PLAIN)
        assert answer.json()["prediction"]["outputs"]["y"] == [6, 8]
        server.signal()
        assert server.exit_code() == 0


def test_a_signal_interrupts_the_layout_measurement(models: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    settings = {"devices": "auto", "model_dir": str(models), "port": str(free_port())}
    with start_process(log, **settings) as process:
        until = time.monotonic() + 60
        while "measuring_cpu_layout" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(40) == 0
    assert "Traceback" not in log.read_text()
    assert "cpu_layout_measured" not in log.read_text()
    assert '"signal": "SIGINT"' in log.read_text()
