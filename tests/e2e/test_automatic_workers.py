"""`--workers auto`: as many processes as the measured models pay for."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from models.plan import DevicePlan, Form, FormTimes, Plan
from models.processor import this_cpu
from models.system.resources import usable_cores
from tests.artifacts import write_artifact
from tests.e2e.server import free_port, running, start_process
from tests.e2e.test_workers import alive, started, status, until


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A repository whose model was measured and found to be small."""
    times = FormTimes(
        form=Form(variant="script"),
        precision="float32",
        batch_sizes=(1,),
        **dict.fromkeys(("median_us", "low_us", "high_us"), (20.0,)),
    )
    device = DevicePlan(processor=this_cpu(1), torch_version="0", times=(times,), steps={})
    write_artifact(tmp_path / "small", "double", plan=Plan(precision="float32", devices=(device,)))
    return tmp_path / "small"


@pytest.mark.skipif(usable_cores() < 2, reason="on one core there is one process")
class TestAutomaticWorkers:
    @pytest.mark.soak
    def test_a_small_model_gets_several_workers(self, small: Path, log: Path) -> None:
        wanted = min(usable_cores(), 4)
        asked = {"devices": "auto", "workers": "auto", "log_format": "json"}
        with running(small, log, **asked) as server:
            assert f'"workers": {wanted}' in server.log
            assert len(started(log)) == wanted
            for n in range(2 * wanted):
                assert status(server, n) == 200
            os.kill(started(log)[0], signal.SIGKILL)
            until(lambda: "worker_loaded" in server.log, "it is not replaced")
            for n in range(2 * wanted):
                assert status(server, n) == 200
            server.signal()
            assert server.exit_code() == 0
        until(lambda: not any(map(alive, started(log))), "the workers outlive their parent")

    def test_a_signal_before_the_fork_stops_the_server(
        self, small: Path, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        before = set(tmp_path.iterdir())
        settings = {"devices": "auto", "workers": "auto", "port": str(free_port())}
        with start_process(log, **settings, model_dir=str(small)) as process:
            loaded = Path(f"/proc/{process.pid}/maps")
            until(lambda: "libtorch" in loaded.read_text(), "it imports nothing")
            process.terminate()
            assert process.wait(60) == 0
        assert "Traceback" not in log.read_text()
        assert set(tmp_path.iterdir()) - before <= {log}
