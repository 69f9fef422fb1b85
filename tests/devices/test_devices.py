"""The program runs, and what it prints is of both kinds."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from models.resources import usable_cores


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
        r"^pairwise: one item, p50: \d+ us step by step, \d+ us",
    ):
        assert re.search(line, done.stdout, re.MULTILINE), done.stdout
    assert (tmp_path / "gpu-pairwise.json").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="here it measures")
def test_the_gpu_benchmark_reports_a_missing_gpu() -> None:
    command = [sys.executable, "-m", "tests.devices.gpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "gpu: there is no CUDA device here; nothing was measured\n"
