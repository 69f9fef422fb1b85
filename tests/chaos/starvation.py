"""How long a server was ready to run and did not get a processor: that is no stall of its own."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from pathlib import Path

import psutil

KEPT = 200
Delays = dict[int, dict[str, int]]  # process -> thread -> nanoseconds since its start


class Starvation:
    """Watches the threads of a process and of its children.

    Args:
        pid: the parent.
    """

    def __init__(self, pid: int) -> None:
        self._parent = psutil.Process(pid)
        self._samples: deque[tuple[float, Delays]] = deque(maxlen=KEPT)

    def look(self) -> None:
        """Remember the state of now."""
        self._samples.append((time.monotonic(), self._now()))

    def since(self, then: float) -> float:
        """Seconds that the threads of one process waited for a processor, of the one worst off."""
        before: Delays = next((each for at, each in reversed(self._samples) if at <= then), {})
        waited = [
            sum(delay - before.get(pid, {}).get(thread, delay) for thread, delay in threads.items())
            for pid, threads in self._now().items()
        ]
        return max(waited, default=0) / 1e9

    def _now(self) -> Delays:
        found: Delays = {}
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in (self._parent, *self._parent.children()):
                delays = found.setdefault(process.pid, {})
                with contextlib.suppress(OSError):
                    for thread in Path(f"/proc/{process.pid}/task").iterdir():
                        delays[thread.name] = int((thread / "schedstat").read_text().split()[1])
        return found
