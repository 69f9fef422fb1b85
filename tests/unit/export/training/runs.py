"""Runs of `program`, and what they left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.docs.blocks import ROOT

PROGRAM = ("-m", "tests.unit.export.training.program")
# One thread each: processes that share two cores do not wait for each other's threads.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "PYTHONPATH": str(ROOT),
    # Freed layers go back to the system; glibc would keep them in its heap, in pieces.
    "MALLOC_MMAP_THRESHOLD_": "1048576",
    "MASTER_ADDR": "127.0.0.1",
}
UNSHARED = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone")


def start(*arguments: object, launcher: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """A run as a process, in a session of its own."""
    command = [sys.executable, *launcher, *PROGRAM, *(str(each) for each in arguments)]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | ENVIRONMENT | ({UNSHARED: "1"} if launcher else {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def train(model: str, out: Path, *options: object) -> str:
    """What a run that succeeds prints."""
    process = start("train", model, "--out", out, *options)
    printed, _ = process.communicate()
    assert process.returncode == 0, printed
    return printed


def curve(out: Path) -> list[dict[str, Any]]:
    """The epochs of a run, without the seconds that they took."""
    epochs: list[dict[str, Any]] = json.loads((out / "curves.json").read_bytes())["epochs"]
    return [{name: each for name, each in epoch.items() if name != "seconds"} for epoch in epochs]


def accuracy(out: Path) -> float:
    share: float = curve(out)[-1]["metrics"]["accuracy"]
    return share


def weights(out: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(out / "best.ckpt", weights_only=True)["state_dict"]
    return state


def largest_difference(one: Path, other: Path) -> float:
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    return max(float((first[name].double() - second[name]).abs().max()) for name in first)


def reached(out: Path) -> int:
    try:
        return int((out / "reached").read_text())
    except (OSError, ValueError):
        return 0


def wait_for(step: int, out: Path, process: subprocess.Popen[str]) -> None:
    """Wait until a run has done a number of steps; it must not end before."""
    while reached(out) < step:
        if process.poll() is not None:
            pytest.fail(f"it ended with {process.returncode}: {process.communicate()[0]}")
        time.sleep(0.02)
