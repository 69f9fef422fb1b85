"""The available devices, and the number of threads of a CPU replica."""

from __future__ import annotations

import os
import re
from collections.abc import Collection

import structlog
import torch

from app.types import Device
from models.system.resources import usable_cores

LOG = structlog.get_logger(__name__)
SPEC = re.compile(r"auto|(cpu(\*[1-9][0-9]?)?|cuda:[0-9]+)(,(cpu(\*[1-9][0-9]?)?|cuda:[0-9]+))*")
SPEC_HELP = "auto, cpu, cpu*2 (two CPU replicas), cuda:0,cuda:1, or cuda:0,cpu"


def find_devices(spec: str, replicas_per_device: int) -> tuple[Device, ...]:
    """The devices of all replicas, one entry per replica.

    Args:
        spec: `auto` (every visible CUDA device, else the CPU), or `cpu`, `cpu*N` and `cuda:I`,
            separated by commas; `cpu,cpu` is `cpu*2`.
        replicas_per_device: how many replicas each device gets.

    Raises:
        ValueError: if the spec is malformed or names a missing device.
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
            raise ValueError(
                f"{spec!r}: {visible} CUDA devices are visible; name each at most once"
            )
    return tuple(device for device in devices for _ in range(replicas_per_device))


def cpu_threads(devices: tuple[Device, ...], processes: int = 1) -> int:
    """Intra-op threads per CPU replica: all usable cores except one, shared evenly; at least one.

    Several processes first share the cores evenly, and each leaves one core free.

    The free core is for the event loop. If replicas also used it, every parallel section of a
    forward would wait for a core that parses requests: docs/adr/0001-replicas-are-threads.md.
    """
    replicas = sum(device.kind == "cpu" for device in devices)
    return max(1, (usable_cores() // processes - 1) // max(1, replicas))


def compute_with(threads: int, cores: Collection[int] | None = None) -> None:
    """Set this thread's number of intra-op threads, and the cores that they may use.

    Args:
        threads: number of threads, including this one.
        cores: the cores to use, if the system supports it; None for any.
    """
    if cores is not None and hasattr(os, "sched_setaffinity"):
        try:
            os.sched_setaffinity(0, cores)  # for this thread and the threads that it starts
        except OSError as error:  # forbidden, or the cores are no longer available
            LOG.warning("not_kept_to_cores", cores=sorted(cores), error=str(error))
    torch.set_num_threads(threads)


def share_one_core(devices: tuple[Device, ...], processes: int = 1) -> bool:
    """Whether the replicas share the only core of their process with its event loop."""
    return all(device.kind == "cpu" for device in devices) and usable_cores() // processes <= 1
