"""Which processor this is: a plan holds for the one it was measured on, native code for a family.

What the operating system says, and no more; what CUDA devices are called is asked of torch, above.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from models.tensors import Part

CPUINFO = Path("/proc/cpuinfo")
# What tells CPUs of one name apart, on x86 and on ARM; by stepping only differ some generations of
# Xeons, which have other instruction sets.
NUMBERS = (
    *("cpu family", "model", "stepping"),
    *("CPU implementer", "CPU variant", "CPU part", "CPU revision"),
)
CGROUP = Path("/proc/self/cgroup")
CGROUPS = Path("/sys/fs/cgroup")
MAPS = Path("/proc/self/maps")
STATM = Path("/proc/self/statm")
DeviceKind = Literal["cpu", "cuda"]


class Processor(Part):
    """What a time was measured on; two that are equal may share a plan."""

    kind: DeviceKind
    name: str
    threads: int = Field(ge=1, description="intra-op threads on the CPU; 1 on a CUDA device")

    def __str__(self) -> str:
        threads = f", {self.threads} thread{'s' if self.threads > 1 else ''}"
        return self.name + (threads if self.kind == "cpu" else "")


def this_cpu(threads: int) -> Processor:
    """This machine's CPU, computing with so many threads."""
    return Processor(kind="cpu", name=cpu_name(), threads=threads)


def usable_cores() -> int:
    """Cores that this process may use: those it may run on, or fewer where a container has a quota.

    A quota of 1.5 cores counts as one: threads beyond it use up their time early in each period of
    the kernel's (100 ms), and then all of them stand still.
    """
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = os.cpu_count() or 1
    return max(1, min(allowed, int(min(_quotas(), default=allowed))))


def _quotas() -> Iterator[float]:
    """Each limit in force in cores: of this process's control groups and of those above them."""
    try:
        groups = [line.split(":", 2)[1:] for line in CGROUP.read_text().splitlines()]
    except OSError:
        return
    for controllers, path in groups:
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = CGROUPS / "cpu" if controllers else CGROUPS  # version 1 has a tree per controller
        # A container may see its own group as the root, and its path from outside: what is not
        # there is passed over.
        group = Path(path.lstrip("/"))
        for folder in (root / group, *(root / above for above in group.parents)):
            quota = _quota(folder)
            if quota is not None:
                yield quota


def _quota(group: Path) -> float | None:
    """A control group's limit in cores; None where it has none."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = (group / "cpu.max").read_text().split()
        return float(quota) / float(period) if quota != "max" else None
    with contextlib.suppress(OSError, ValueError):
        quota_us = int((group / "cpu.cfs_quota_us").read_text())
        period_us = int((group / "cpu.cfs_period_us").read_text())
        return quota_us / period_us if quota_us > 0 else None
    return None


def machine() -> str:
    """The architecture as `uname -m` says it."""
    return platform.machine()


@functools.cache
def cpu_name() -> str:
    """The model's name, and its numbers: virtual machines hide the name, ARM has numbers only."""
    fields = _cpuinfo()
    name = fields.get("model name") or platform.processor() or "unknown CPU"
    numbers = [f"{key} {fields[key]}" for key in NUMBERS if key in fields]
    return ", ".join([f"{name} ({machine()})", *numbers])


@functools.cache
def cpu_flags() -> frozenset[str]:
    """The instruction sets of this CPU as Linux names them; empty where it does not say."""
    fields = _cpuinfo()
    return frozenset((fields.get("flags") or fields.get("Features") or "").split())


def resident_bytes() -> int | None:
    """Memory of this process that is in use, as Linux counts it; None elsewhere."""
    try:
        pages = int(STATM.read_text().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def mapped_files() -> set[str]:
    """Files that are mapped into this process, by their paths; empty elsewhere than on Linux."""
    try:
        lines = MAPS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return set()
    return {fields[5] for line in lines if len(fields := line.split(maxsplit=5)) == 6}


def _cpuinfo() -> dict[str, str]:
    """The first core's lines of /proc/cpuinfo; empty elsewhere than on Linux."""
    try:
        text = CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in lines}
