"""The requests that wait for outcomes; each expires at its deadline."""

from __future__ import annotations

import asyncio
import heapq
import math

import structlog

from app.engine.clock import Clock, Timer
from app.engine.singleflight import Waiter
from app.errors import TorchlaneError

LOG = structlog.get_logger(__name__)
COMPACT_ABOVE = 64  # settled waiters that the heap may contain before it is swept


class OpenWaiters:
    """Expires all waiters with one timer: a timer for each would cost 3 us.

    Owned by the event loop. If all requests have the same timeout, deadlines are added in order,
    and the first waiter expires first; a heap has the others.

    Args:
        clock: the clock of the deadlines.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # By number: waiters whose deadlines were added in order, and the others.
        self._in_order: dict[int, Waiter] = {}
        self._others: dict[int, Waiter] = {}
        self._latest = -math.inf  # latest deadline in order
        # Settled waiters are removed from it later. It has only their numbers, so that the waiters
        # and all that they reference are freed at once.
        self._by_deadline: list[tuple[float, int]] = []
        self._number = 0
        self._timer: Timer | None = None
        self._timer_at = 0.0
        self._emptied: asyncio.Future[None] | None = None

    def add(self, waiter: Waiter) -> None:
        """Add a waiter, which waits until it is closed or its deadline passes."""
        deadline = waiter.deadline
        number = waiter.number = self._number = self._number + 1
        if deadline >= self._latest or not self._in_order:
            self._latest = deadline
            self._in_order[number] = waiter
        else:
            self._add_out_of_order(waiter)
        if self._timer is None or deadline < self._timer_at:
            self._set_timer(deadline)

    def hasten(self, waiter: Waiter, deadline: float) -> None:
        """Set an earlier deadline for a waiter; harmless if it does not wait."""
        number = waiter.number
        if number not in self._in_order and number not in self._others:
            return
        waiter.deadline = deadline
        self._in_order.pop(number, None)
        self._add_out_of_order(waiter)
        if self._timer is None or deadline < self._timer_at:
            self._set_timer(deadline)

    def close(self, waiter: Waiter) -> None:
        """Remove a waiter; harmless if it does not wait."""
        number = waiter.number
        if number in self._in_order:
            del self._in_order[number]
        elif number in self._others:
            del self._others[number]
        emptied = self._emptied
        if emptied is not None and self._is_empty() and not emptied.done():
            emptied.set_result(None)

    def fail_all(self, error: TorchlaneError) -> None:
        """End every wait."""
        for waiter in (*self._in_order.values(), *self._others.values()):
            waiter.fail(error)

    async def until_none(self) -> None:
        """Return when no request waits."""
        while not self._is_empty():
            if self._emptied is None or self._emptied.done():
                self._emptied = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._emptied)  # other tasks may await it too

    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = when
        self._timer = self._clock.call_at(when, self._expire)

    def _is_empty(self) -> bool:
        return not self._in_order and not self._others

    def _add_out_of_order(self, waiter: Waiter) -> None:
        if len(self._by_deadline) > 2 * len(self._others) + COMPACT_ABOVE:
            self._by_deadline = [each for each in self._by_deadline if each[1] in self._others]
            heapq.heapify(self._by_deadline)
        self._others[waiter.number] = waiter
        # It may also have an older entry, with its former deadline: it is closed by then.
        heapq.heappush(self._by_deadline, (waiter.deadline, waiter.number))

    def _expire(self) -> None:
        self._timer = None
        now = self._clock.now()
        due: list[Waiter] = []
        for waiter in self._in_order.values():
            if waiter.deadline > now:
                break
            due.append(waiter)
        heap = self._by_deadline
        while heap and heap[0][0] <= now:
            other = self._others.get(heapq.heappop(heap)[1])
            if other is not None:
                due.append(other)
        due.sort(key=_place)
        for waiter in due:
            try:
                waiter.expire()
            except Exception:  # a bug: the others must still expire
                LOG.exception("expiry_failed")
        self._set_next_timer()

    def _set_next_timer(self) -> None:
        heap = self._by_deadline  # a new list, if it was swept meanwhile
        while heap and heap[0][1] not in self._others:
            heapq.heappop(heap)
        when = heap[0][0] if heap else math.inf
        first = next(iter(self._in_order.values()), None)
        if first is not None and first.deadline < when:
            when = first.deadline
        if when < math.inf and (self._timer is None or when < self._timer_at):
            self._set_timer(when)


def _place(waiter: Waiter) -> tuple[float, int]:
    """Its place in the order of expiry: for equal deadlines, the first added is first."""
    return waiter.deadline, waiter.number
