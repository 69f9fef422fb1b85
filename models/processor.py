"""Identifies this processor: a plan is for one processor, native code for a family of them.

Uses what the operating system reports; callers get the names of CUDA devices from torch.
"""

from __future__ import annotations

import functools
import platform
from pathlib import Path
from typing import Literal

from pydantic import Field

from models.parts import Part

CPUINFO = Path("/proc/cpuinfo")
# These distinguish CPUs with one name, on x86 and on ARM; some Xeon generations, which have
# different instruction sets, differ only by stepping.
NUMBERS = (
    *("cpu family", "model", "stepping"),
    *("CPU implementer", "CPU variant", "CPU part", "CPU revision"),
)
DeviceKind = Literal["cpu", "cuda"]


class Processor(Part):
    """The processor of a measurement; equal ones can share a plan."""

    kind: DeviceKind
    name: str
    threads: int = Field(ge=1, description="intra-op threads on the CPU; 1 on a CUDA device")

    def __str__(self) -> str:
        threads = f", {self.threads} thread{'s' if self.threads > 1 else ''}"
        return self.name + (threads if self.kind == "cpu" else "")


def this_cpu(threads: int) -> Processor:
    """Return this machine's CPU with a number of threads."""
    return Processor(kind="cpu", name=cpu_name(), threads=threads)


def machine() -> str:
    """Return the architecture in the form of `uname -m`."""
    return platform.machine()


@functools.cache
def cpu_name() -> str:
    """Return the CPU's name and numbers: virtual machines hide the name, ARM has only numbers."""
    fields = _cpuinfo()
    name = fields.get("model name") or platform.processor() or "unknown CPU"
    numbers = [f"{key} {fields[key]}" for key in NUMBERS if key in fields]
    return ", ".join([f"{name} ({machine()})", *numbers])


@functools.cache
def cpu_flags() -> frozenset[str]:
    """Return this CPU's instruction sets, in Linux's names; empty if unknown."""
    fields = _cpuinfo()
    return frozenset((fields.get("flags") or fields.get("Features") or "").split())


def _cpuinfo() -> dict[str, str]:
    """Return the first core's lines of /proc/cpuinfo; empty except on Linux."""
    try:
        text = CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in lines}
