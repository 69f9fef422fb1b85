"""Which processor this is: a plan holds for the one it was measured on, native code for a family.

What the operating system says, and no more; what CUDA devices are called is asked of torch, above.
"""

from __future__ import annotations

import functools
import platform
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
MAPS = Path("/proc/self/maps")
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
