"""How long a core does not run a process that needs all of it: stalls by hypervisor or neighbours.

A latency's tail is no better than that, whatever the server does.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator

from loadtests.bench.servers import Cores, pinned
from loadtests.reports import Verdict

SECONDS = 1.0
GAP_S = 0.001  # less is an interrupt
MOST_STALLED = 0.005  # of the time: above it a tail says more about the machine than of the server
SPIN = """
import sys, time
end = time.monotonic() + float(sys.argv[1])  # also when the parent is gone
print(flush=True)
while time.monotonic() < end:
    pass
"""


def share_stalled(cores: Cores, seconds: float = SECONDS) -> float:
    """The share of the time in which a loop that does nothing else did not run.

    The generator's core is kept busy meanwhile: virtual machines may have less time for two busy
    cores than for one.

    Args:
        cores: it runs on the server's, or wherever the kernel puts it.
        seconds: for how long to look.
    """
    lost_s = 0.0
    with _busy(cores.generator, seconds + 10), pinned(cores.server):
        began = last = time.perf_counter()
        while last < began + seconds:
            now = time.perf_counter()
            if now - last > GAP_S:
                lost_s += now - last
            last = now
    return lost_s / (last - began)


def doubt_of(stalled: float) -> str:
    """Why a bad tail proves nothing at this share; empty if it does."""
    if stalled <= MOST_STALLED:
        return ""
    return f"the server's core stood still for {stalled:.1%} of the time without any load"


def verdict_of(is_met: bool, stalled: float) -> tuple[Verdict, str]:
    """The verdict on a demand that stalls could make missed, and the doubt if nothing is judged."""
    doubt = "" if is_met else doubt_of(stalled)
    return ("met" if is_met else "not judged" if doubt else "missed"), doubt


@contextlib.contextmanager
def _busy(core: int | None, seconds: float) -> Iterator[None]:
    """Another process wants all of a core for that time at most; None: there is none."""
    if core is None:
        yield
        return
    with (
        pinned(core),
        subprocess.Popen(  # nosec B603 # the program above
            [sys.executable, "-c", SPIN, str(seconds)], stdout=subprocess.PIPE
        ) as other,
    ):
        try:
            if other.stdout is not None:
                other.stdout.readline()
            yield
        finally:
            other.kill()
