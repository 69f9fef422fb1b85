"""Measures stalls by hypervisor or neighbours: times in which a core does not run a busy process.

The tail of a latency cannot be better, whatever the server does.
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
GAP_S = 0.001  # shorter gaps are interrupts
MOST_STALLED = 0.005  # of the time: above, a tail describes the machine rather than the server
SPIN = """
import sys, time
end = time.monotonic() + float(sys.argv[1])  # also when the parent is gone
print(flush=True)
while time.monotonic() < end:
    pass
"""


def share_stalled(cores: Cores, seconds: float = SECONDS) -> float:
    """Measure the share of the time in which a busy loop did not run.

    The generator's core is kept busy meanwhile, because virtual machines may have less time for two
    busy cores than for one.

    Args:
        cores: the loop runs on the server's core, or on any.
        seconds: the measured time.
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
    """Say why a bad tail proves nothing at this share; empty if it is valid."""
    if stalled <= MOST_STALLED:
        return ""
    return f"the server's core was stalled for {stalled:.1%} of the time without any load"


def verdict_of(is_met: bool, stalled: float) -> tuple[Verdict, str]:
    """Return the verdict on a demand that stalls can spoil, and the doubt if it is not judged."""
    doubt = "" if is_met else doubt_of(stalled)
    return ("met" if is_met else "not judged" if doubt else "missed"), doubt


@contextlib.contextmanager
def _busy(core: int | None, seconds: float) -> Iterator[None]:
    """Run another process that needs all of a core, for at most that time; None: no process."""
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
