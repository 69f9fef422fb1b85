"""Which devices there are, and how many threads a CPU replica computes with."""

from __future__ import annotations

import os
import re
from collections.abc import Collection

import structlog
import torch

from app.types import Device
from models.resources import usable_cores

LOG = structlog.get_logger(__name__)
SPEC = re.compile(r"auto|(cpu(\*[1-9][0-9]?)?|cuda:[0-9]+)(,(cpu(\*[1-9][0-9]?)?|cuda:[0-9]+))*")
SPEC_HELP = "auto, cpu, cpu*2 (two CPU replicas), cuda:0,cuda:1, or cuda:0,cpu"


def find_devices(spec: str, replicas_per_device: int) -> tuple[Device, ...]:
    """The devices of all replicas, one entry per replica.

    Args:
        spec: `auto` (every visible CUDA device, else the CPU), or `cpu`, `cpu*N` and `cuda:I` with
            commas between; `cpu,cpu` is `cpu*2`.
        replicas_per_device: how many replicas each device gets.

    Raises:
        ValueError: if the spec is not of that form, or names a device that is not there.
    """
    if not SPEC.fullmatch(spec):
        raise ValueError(f"{spec!r} is not one of: {SPEC_HELP}")
    visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if spec == "auto":
        devices = [Device("cuda", index) for index in range(visible)] or [Device("cpu")]
    else:
        devices = []
        for part in spec.split(","):
            if part.startswith("cpu"):
                devices += [Device("cpu")] * int(part.partition("*")[2] or 1)
            else:
                devices.append(Device("cuda", int(part.removeprefix("cuda:"))))
        indices = [device.index for device in devices if device.kind == "cuda"]
        if len(set(indices)) != len(indices) or any(index >= visible for index in indices):
            raise ValueError(f"{spec!r}: {visible} CUDA devices are visible, each named once")
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


def compute_with(threads: int, cores: Collection[int] | None = None) -> None:
    """Compute with so many intra-op threads in this thread; torch keeps the number by thread.

    Args:
        threads: so many, this one among them.
        cores: what they are kept to, where the system can do that; None: to nothing.
    """
    if cores is not None and hasattr(os, "sched_setaffinity"):
        try:
            os.sched_setaffinity(0, cores)  # of this thread, and of those that it starts
        except OSError as error:  # forbidden here, or these cores are no longer ours
            LOG.warning("not_kept_to_cores", cores=sorted(cores), error=str(error))
    torch.set_num_threads(threads)


def share_one_core(devices: tuple[Device, ...], processes: int = 1) -> bool:
    """Whether the replicas compute on the only core that the event loop of their process has."""
    return all(device.kind == "cpu" for device in devices) and usable_cores() // processes <= 1
