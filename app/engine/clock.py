"""The engine's clock: that of the event loop, or a manual one for tests."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancel the call; harmless if it has already run."""


class Clock(Protocol):
    """Monotonic time in seconds, and calls at a given time."""

    def now(self) -> float:
        """Seconds since an arbitrary start."""

    def call_at(self, when: float, call: Callable[[], None]) -> Timer:
        """Run `call` on the event loop once `now() >= when`."""


class LoopClock:
    """`time.monotonic`, and the running event loop's timers.

    Not the loop's own time: uvloop caches it and counts whole milliseconds.
    """

    now = staticmethod(time.monotonic)  # called several times per request: avoids a frame

    def call_at(self, when: float, call: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(max(0.0, when - time.monotonic()), call)


class ManualClock:
    """A clock that moves only when `advance` is called; for tests and simulations."""

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start
        self._due: list[tuple[float, int, _ManualTimer]] = []
        self._order = itertools.count()

    def now(self) -> float:
        return self._now

    def call_at(self, when: float, call: Callable[[], None]) -> Timer:
        timer = _ManualTimer(call)
        heapq.heappush(self._due, (when, next(self._order), timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Move on, and run the calls that become due, in order."""
        end = self._now + seconds
        while self._due and self._due[0][0] <= end:
            when, _, timer = heapq.heappop(self._due)
            self._now = max(self._now, when)
            timer.fire()
        self._now = end


class _ManualTimer:
    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self._call = None

    def fire(self) -> None:
        if self._call is not None:
            self._call()
