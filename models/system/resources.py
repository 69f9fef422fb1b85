"""Determines the resources that this process may use, on its machine or in its container."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

CGROUP = Path("/proc/self/cgroup")
CGROUPS = Path("/sys/fs/cgroup")
NODES = Path("/sys/devices/system/node")
MEMINFO = Path("/proc/meminfo")
STATM = Path("/proc/self/statm")
KIB = 1024


def usable_cores() -> int:
    """Return the number of cores that this process may use, considering a container's quota.

    A quota of 1.5 cores counts as one: more threads would use up their time early in each of the
    kernel's periods (100 ms), and then all of them would pause.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(os.getpid()))  # of its first thread: replicas have fewer
    else:
        cores = os.cpu_count() or 1
    quotas = [quota for group in _groups("cpu") if (quota := _quota(group)) is not None]
    return max(1, min(cores, int(min(quotas, default=cores))))


def serving_threads() -> int:
    """Return the intra-op threads of a server with one CPU replica: the event loop has a core."""
    return max(1, usable_cores() - 1)


def numa_nodes() -> tuple[frozenset[int], ...]:
    """Return the cores of each NUMA node that this process may use; empty if unknown.

    A core accesses the memory of its own node faster.
    """
    if not hasattr(os, "sched_getaffinity"):
        return ()
    own_cores, nodes = os.sched_getaffinity(0), []
    for file in sorted(NODES.glob("node[0-9]*/cpulist")):
        with contextlib.suppress(OSError, ValueError):
            cores = own_cores & _cpulist(file.read_text())
            if cores:
                nodes.append(frozenset(cores))
    return tuple(nodes)


def memory_left_bytes() -> int | None:
    """Return the memory that this process can still use; None: unknown."""
    rooms = [room for group in _groups("memory") if (room := _room(group)) is not None]
    with contextlib.suppress(OSError, ValueError, KeyError):
        rooms.append(_meminfo("MemAvailable:"))
    return max(0, min(rooms)) if rooms else None


def memory_bytes() -> int | None:
    """Return the memory of this machine, or the container's limit if it is less; None: unknown."""
    limits = [limit for group in _groups("memory") if (limit := _limit(group)) is not None]
    with contextlib.suppress(OSError, ValueError, KeyError):
        limits.append(_meminfo("MemTotal:"))
    return min(limits, default=None)


def resident_bytes() -> int | None:
    """Return the resident memory of this process on Linux; None elsewhere."""
    try:
        pages = int(STATM.read_text().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _meminfo(field: str) -> int:
    """Return a field of the kernel's figures for the machine, in bytes."""
    lines = (line.split() for line in MEMINFO.read_text().splitlines())
    return {fields[0]: int(fields[1]) for fields in lines}[field] * KIB


def _groups(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control groups and their parents."""
    try:
        groups = [line.split(":", 2)[1:] for line in CGROUP.read_text().splitlines()]
    except OSError:
        return
    for controllers, path in groups:
        if controllers and controller not in controllers.split(","):
            continue
        # Version 1 has a tree per controller.
        root = CGROUPS / controller if controllers else CGROUPS
        # A container may see its own group as the root, but its path from outside, so missing
        # folders are skipped.
        group = Path(path.lstrip("/"))
        yield from (root / group, *(root / above for above in group.parents))


def _quota(group: Path) -> float | None:
    """Return a control group's limit in cores; None: no limit."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = (group / "cpu.max").read_text().split()
        return float(quota) / float(period) if quota != "max" else None
    with contextlib.suppress(OSError, ValueError):
        quota_us = int((group / "cpu.cfs_quota_us").read_text())
        period_us = int((group / "cpu.cfs_period_us").read_text())
        return quota_us / period_us if quota_us > 0 else None
    return None


def _limit(group: Path) -> int | None:
    """Return a control group's limit in bytes; None: no limit."""
    for file in ("memory.max", "memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            return int((group / file).read_text())
    return None


def _room(group: Path) -> int | None:
    """Return the bytes that a control group may still use; None: no limit.

    Cached files do not count: the kernel drops them first.
    """
    for limit, usage, prefix in (
        ("memory.max", "memory.current", ""),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    ):
        with contextlib.suppress(OSError, ValueError):
            most = (group / limit).read_text().strip()
            if most == "max":
                return None
            used_bytes = int((group / usage).read_text())
            stat = (line.split() for line in (group / "memory.stat").read_text().splitlines())
            by_name = {name: int(value) for name, value in stat}
            files = (by_name.get(f"{prefix}{state}_file", 0) for state in ("active", "inactive"))
            return int(most) - used_bytes + sum(files)
    return None


def _cpulist(text: str) -> set[int]:
    """Parse a list of numbers: `0-3,8` is 0, 1, 2, 3 and 8."""
    cores: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return cores
