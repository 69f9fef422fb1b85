"""Which devices there are, and how many threads a CPU replica computes with."""

from __future__ import annotations

import re

import torch

from app.types import Device
from models.processor import usable_cores

SPEC = re.compile(r"auto|cpu(\*[1-9][0-9]?)?|cuda:[0-9]+(,cuda:[0-9]+)*")
SPEC_HELP = "auto, cpu, cpu*2 (two CPU replicas), or cuda:0,cuda:1"


def find_devices(spec: str, replicas_per_device: int) -> tuple[Device, ...]:
    """The devices of all replicas, one entry per replica.

    Args:
        spec: `auto` (every visible CUDA device, else the CPU), `cpu`, `cpu*N` or `cuda:I,cuda:J`.
        replicas_per_device: how many replicas each device gets.

    Raises:
        ValueError: if the spec is not of that form, or names a device that is not there.
    """
    if not SPEC.fullmatch(spec):
        raise ValueError(f"{spec!r} is not one of: {SPEC_HELP}")
    visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if spec == "auto":
        devices = [Device("cuda", index) for index in range(visible)] or [Device("cpu")]
    elif spec.startswith("cpu"):
        devices = [Device("cpu")] * int(spec.partition("*")[2] or 1)
    else:
        indices = [int(part.removeprefix("cuda:")) for part in spec.split(",")]
        missing = [index for index in indices if index >= visible]
        if missing or len(set(indices)) != len(indices):
            raise ValueError(f"{spec!r}: {visible} CUDA devices are visible, each named once")
        devices = [Device("cuda", index) for index in indices]
    return tuple(device for device in devices for _ in range(replicas_per_device))


def cpu_threads(devices: tuple[Device, ...], processes: int = 1) -> int:
    """Intra-op threads per CPU replica: all usable cores but one, shared evenly; at least one.

    Several processes share the cores evenly first, and each leaves one of its own out.

    The one that is left out is the event loop's: where both want it, every parallel section of a
    forward waits for a core that parses requests. docs/adr/0001-replicas-are-threads.md has
    figures.
    """
    replicas = sum(device.kind == "cpu" for device in devices)
    return max(1, (usable_cores() // processes - 1) // max(1, replicas))


def compute_with(threads: int) -> None:
    """Compute with so many intra-op threads in this thread; torch keeps the number by thread."""
    torch.set_num_threads(threads)


def share_one_core(devices: tuple[Device, ...], processes: int = 1) -> bool:
    """Whether the replicas compute on the only core that the event loop of their process has."""
    return all(device.kind == "cpu" for device in devices) and usable_cores() // processes <= 1
