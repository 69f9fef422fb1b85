"""The requests that wait for outcomes; each of them expires at its deadline."""

from __future__ import annotations

import asyncio
import heapq
import itertools

from app.engine.clock import Clock, Timer
from app.engine.singleflight import Waiter
from app.errors import TorchlaneError

COMPACT_ABOVE = 64  # settled waiters that the heap may hold on to before it is swept


class OpenWaiters:
    """Expires waiters by one timer, however many there are: a timer each would cost 3 us.

    Owned by the event loop.

    Args:
        clock: the one that deadlines are given in.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: dict[int, Waiter] = {}  # by their numbers
        # Numbers of settled ones leave it later; the waiters themselves, with all that they hold,
        # must not stay until then.
        self._by_deadline: list[tuple[float, int]] = []
        self._numbers = itertools.count(1)
        self._timer: Timer | None = None
        self._timer_at = 0.0
        self._emptied: asyncio.Future[None] | None = None

    def add(self, waiter: Waiter) -> None:
        """A request waits from now on."""
        waiter.number = number = next(self._numbers)
        self._open[number] = waiter
        if len(self._by_deadline) > 2 * len(self._open) + COMPACT_ABOVE:
            self._by_deadline = [each for each in self._by_deadline if each[1] in self._open]
            heapq.heapify(self._by_deadline)
        heapq.heappush(self._by_deadline, (waiter.deadline, number))
        if self._timer is None or waiter.deadline < self._timer_at:
            self._set_timer(waiter.deadline)

    def hasten(self, waiter: Waiter, deadline: float) -> None:
        """A request that waits expires earlier than it was added for."""
        waiter.deadline = deadline
        heapq.heappush(
            self._by_deadline, (deadline, waiter.number)
        )  # the later entry finds it closed
        if self._timer is None or deadline < self._timer_at:
            self._set_timer(deadline)

    def close(self, waiter: Waiter) -> None:
        """It waits no longer; harmless when it did not."""
        self._open.pop(waiter.number, None)
        if self._emptied is not None and not self._open and not self._emptied.done():
            self._emptied.set_result(None)

    def fail_all(self, error: TorchlaneError) -> None:
        """End every wait."""
        for waiter in tuple(self._open.values()):
            waiter.fail(error)

    async def until_none(self) -> None:
        """Return when no request waits."""
        while self._open:
            if self._emptied is None or self._emptied.done():
                self._emptied = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._emptied)  # others may wait for it too

    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = when
        self._timer = self._clock.call_at(when, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._clock.now()
        while self._by_deadline:
            deadline, number = self._by_deadline[0]
            waiter = self._open.get(number)
            if waiter is None:
                heapq.heappop(self._by_deadline)
            elif deadline > now:
                self._set_timer(deadline)
                return
            else:
                heapq.heappop(self._by_deadline)
                waiter.expire()
