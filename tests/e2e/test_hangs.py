"""A real process whose forwards hang, or that is paused."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.e2e.server import post_on_the_wire, running

SLOW = "tests.e2e.slow_app"


def test_a_forward_holding_the_gil_ends_the_process(models: Path, log: Path) -> None:
    quick = {"hang_s": "3", "request_timeout_ms": "3000"}
    with running(models, log, SLOW, **quick) as server:
        with post_on_the_wire(server.port, b'{"input": [-1, 0]}'):
            assert server.exit_code() == signal.SIGALRM
        assert "slow_app.py" in server.log  # where it hangs


def test_a_paused_process_resumes_without_hung_replicas(
    models: Path, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `docker pause` does, or a host that moves a virtual machine; HangTimer has a test too."""
    gate = tmp_path / "gate"
    monkeypatch.setenv("SLOW_UNTIL", str(gate))
    with running(models, log, SLOW, hang_s="1", request_timeout_ms="200000") as server:
        with post_on_the_wire(server.port, b'{"input": [2, 0]}') as connection:
            server.wait_for_metric("torchlane_batch_size_count", lambda n: n >= 1)
            server.signal(signal.SIGSTOP)
            time.sleep(6)  # the event loop may stand still for 5 s
            server.signal(signal.SIGCONT)
            time.sleep(0.4)  # the watchdog looks again: the replica did nothing in 6 s
            gate.touch()
            assert b"200 OK" in connection.recv(65536)
        assert "loop_stood_still" in server.log
        assert server.metric("torchlane_replica_faults_total") == 0
        assert "replica_sick" not in server.log
