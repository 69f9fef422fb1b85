"""The program runs, and what it prints is of both kinds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from models.system.resources import usable_cores


@pytest.mark.skipif(usable_cores() < 2, reason="needs two cores")
@pytest.mark.soak
def test_rates_and_ratios_are_printed_for_each_kind() -> None:
    command = [sys.executable, "-m", "tests.devices", "--rounds", "1", "--seconds", "0.3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    for kind in ("engine", "raw", "pipeline"):
        line = rf"^{kind}: one [1-9][\d,]*/s, two [1-9][\d,]*/s; ratio \d+\.\d\d"
        assert re.search(line, done.stdout, re.MULTILINE), done.stdout


@pytest.mark.soak
def test_the_gpu_benchmark_prints_every_measurement(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.devices.gpu", "--device", "cpu", "--models", "pairwise"]
    command += ["--sizes", "1,4", "--rounds", "1", "--seconds", "0.2", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    for line in (
        r"^pairwise: bare forwards by batch size, items/s: 1: [1-9][\d,]*, 4: [1-9][\d,]*$",
        r"^pairwise: batches of \d: bare [1-9][\d,]*/s, engine [1-9][\d,]*/s; ratio \d+\.\d\d",
        r"^pairwise: copy in: no copies were recorded",
        r"^pairwise: bare forwards of 1 by form, items/s: script [1-9][\d,]*",
        r"^pairwise: bare forwards of 4 by form, items/s: script [1-9][\d,]*",
    ):
        assert re.search(line, done.stdout, re.MULTILINE), done.stdout
    assert (tmp_path / "gpu-pairwise.json").exists()


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_rehearsal_of_a_gpu_runs_every_step(tmp_path: Path) -> None:
    """By this interpreter, or by GPU_CHECK_PYTHON with the wheels in GPU_CHECK_WHEELS."""
    python = os.environ.get("GPU_CHECK_PYTHON", sys.executable)
    wheels = os.environ.get("GPU_CHECK_WHEELS")
    command = ["deploy/gpu_check.sh", "run", str(tmp_path), *([wheels] if wheels else [])]
    environment = os.environ | {
        "PYTHON": python,
        "DEVICE": "cpu",
        "QUICK": "1",
        "SECONDS_ALL": "500",
    }
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=580, env=environment
    )
    assert done.returncode == 0, done.stdout
    summary = (tmp_path / "summary.txt").read_text()
    assert done.stdout.endswith(summary)
    for step in (
        *("machine", "export digits", "gpu tests", "engine", "http digits", "http snippets"),
    ):
        assert re.search(rf"^ok  {step}, \d+ s$", summary, re.MULTILINE), summary
    assert re.search(r"^    digits, image: [1-9][\d,]* requests/s", summary, re.MULTILINE), summary
    assert max(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 16 << 20


@pytest.mark.skipif(torch.cuda.is_available(), reason="here it measures")
def test_the_gpu_benchmark_reports_a_missing_gpu() -> None:
    command = [sys.executable, "-m", "tests.devices.gpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "gpu: there is no CUDA device here; nothing was measured\n"
