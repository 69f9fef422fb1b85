"""Reads how the cores of this process spend their time; only on Linux."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

STAT = Path("/proc/stat")


class CoreTime(NamedTuple):
    """Total seconds of all cores that this process may run on, up to a moment.

    Attributes:
        stolen_s: time in which they had work but a hypervisor ran something else.
        busy_s: time in which they ran anything.
        idle_s: time without work.
        own_s: time in which they ran this process.
    """

    stolen_s: float = 0.0
    busy_s: float = 0.0
    idle_s: float = 0.0
    own_s: float = 0.0

    def stolen_since(self, before: CoreTime) -> float:
        """Return the stolen share of the time with work, 0 to 1."""
        stolen_s = self.stolen_s - before.stolen_s
        return _share(stolen_s, stolen_s + self.busy_s - before.busy_s)

    def others_since(self, before: CoreTime) -> float:
        """Return the share of all time that other processes used and this one may have needed.

        It is 0 to 1; other processes do no harm while cores are idle.
        """
        busy_s, idle_s = self.busy_s - before.busy_s, self.idle_s - before.idle_s
        others_s = busy_s - (self.own_s - before.own_s) - idle_s
        return _share(others_s, busy_s + idle_s)


def core_time() -> CoreTime:
    """Return the current times; all zero if the system does not report them."""
    if not hasattr(os, "sched_getaffinity"):
        return CoreTime()
    own_cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    busy_ticks = idle_ticks = stolen_ticks = 0
    try:
        for line in STAT.read_text(encoding="utf-8").splitlines():
            name, *fields = line.split()
            if name in own_cores:
                user, nice, system, rests, waits, irq, softirq, steal = map(int, fields[:8])
                busy_ticks += user + nice + system + irq + softirq
                idle_ticks += rests + waits
                stolen_ticks += steal
    except (OSError, ValueError):
        return CoreTime()
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    return CoreTime(
        stolen_ticks * tick_s, busy_ticks * tick_s, idle_ticks * tick_s, time.process_time()
    )


def _share(part_s: float, whole_s: float) -> float:
    return min(1.0, part_s / whole_s) if part_s > 0 and whole_s > 0 else 0.0
