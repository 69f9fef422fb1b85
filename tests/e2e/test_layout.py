"""The server measures its CPU layout at start: its choice, and a stop meanwhile."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import httpx
import pytest
import torch

from models.cpu_layout import Layout, MeasuredLayout, layouts
from models.plan import DevicePlan, Form, Plan, Step
from models.processor import this_cpu
from models.resources import usable_cores
from tests.artifacts import write_artifact
from tests.e2e.server import PLAIN, free_port, running, start_process

pytestmark = pytest.mark.skipif(usable_cores() < 2, reason="on one core there is no choice")


def test_the_chosen_layout_is_logged_and_used(models: Path, tmp_path: Path) -> None:
    with running(models, tmp_path / "log", devices="auto") as server:
        (told,) = server.events("cpu_layout_measured")
        found = httpx.get(f"{server.url}/models/double?full=true", verify=PLAIN).json()
        assert len(found["replicas"]) == int(told["chosen"].partition(" x ")[0])
        answer = httpx.post(f"{server.url}/predict", json={"input": [3, 4]}, verify=PLAIN)
        assert answer.json()["prediction"]["outputs"]["y"] == [6, 8]
        server.signal()
        assert server.exit_code() == 0


def test_a_layout_measured_by_export_is_used(tmp_path: Path) -> None:
    cores = usable_cores()
    wanted, script = Layout(cores, 1), Form(variant="script")
    all_of_them = layouts(cores)
    layout = MeasuredLayout(
        chosen=wanted,
        layouts=all_of_them,
        items_per_s=(1.0,) * len(all_of_them),
        batch_size=1,
    )
    device = DevicePlan(
        processor=this_cpu(cores - 1),
        torch_version=torch.__version__,
        times=(),
        steps={"float32": (Step(up_to=64, form=script),)},
        layout=layout,
    )
    plan = Plan(precision="float32", devices=(device,))
    write_artifact(tmp_path / "models", "double", plan=plan)
    with running(tmp_path / "models", tmp_path / "log", devices="auto") as server:
        assert "measuring_cpu_layout" not in server.log
        (told,) = server.events("cpu_layout_measured")
        assert (told["chosen"], told["measured_by"]) == (str(wanted), "export")
        found = httpx.get(f"{server.url}/models/double?full=true", verify=PLAIN).json()
        assert len(found["replicas"]) == cores


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_interrupts_the_layout_measurement(
    models: Path, tmp_path: Path, number: signal.Signals
) -> None:
    log = tmp_path / "log"
    process = start_process(log, devices="auto", model_dir=str(models), port=str(free_port()))
    try:
        until = time.monotonic() + 60
        while "measuring_cpu_layout" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until
            time.sleep(0.01)
        process.send_signal(number)
        assert process.wait(10) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
    assert "Traceback" not in log.read_text()
    assert "cpu_layout_measured" not in log.read_text()
    assert f'"signal": "{number.name}"' in log.read_text()
