"""In which order clients' frames reach gRPC's core, and how many in a turn of the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

FRESH_COST = 256  # of what the core has not read yet, for clients that have not waited
WAITING_COST = 128  # for those that have
SHARE_COST = 32  # of one client, if others wait
CALLS_AHEAD = 32  # calls that have passed, but that the server has not begun
LOOK_S = 0.001  # until the core is asked again what it has read
STUCK_S = 0.05  # what it has not read for so long holds up only its own client
LOST_S = 0.01  # if no call begins in this time, the core has none left


class Queueing(Protocol):
    """A client, as it takes turns.

    Attributes:
        queued: whether it waits for its turn.
        has_more: whether it has something left to pass on after its last turn.
        calls: heads of calls that it has passed on in its last turn.
        ahead: cost of what it has passed on and the core has not read, unless it is stuck.
    """

    queued: bool
    has_more: bool
    calls: int
    ahead: int

    def is_read(self) -> bool:
        """Whether the core has read all that was passed on."""

    def pass_on(self, budget: int, calls: int) -> int:
        """Pass on what may pass now; returns its cost."""

    def wait(self) -> None:
        """Read no more until it is this client's turn."""

    def resume(self) -> None:
        """Read again."""


class FairQueue:
    """Shares the core and the event loop between clients.

    Calls pass only as fast as the server begins them: those ahead would wait in the core, where a
    flood of calls delays or ends the calls of others.

    Args:
        call_soon: calls a function in the next turn of the event loop.
        call_later: the same after some seconds.
        now: the time in seconds.
    """

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        call_later: Callable[[float, Callable[[], None]], asyncio.TimerHandle],
        now: Callable[[], float],
    ) -> None:
        self._call_soon = call_soon
        self._call_later = call_later
        self._now = now
        # As in fair queueing (RFC 8290, FQ-CoDel): a client that has just begun to wait goes before
        # those that always have more.
        self._fresh: deque[Queueing] = deque()
        self._busy: deque[Queueing] = deque()
        self._unread: dict[Queueing, float] = {}  # since when the core has something to read
        self._cost = 0  # of that
        self._calls = CALLS_AHEAD
        self._begun = 0
        self._begun_before = 0
        self._lost: asyncio.TimerHandle | None = None
        self._look: asyncio.TimerHandle | None = None
        self._is_due = False

    def begun(self) -> None:
        """The server has begun a call, so that another one may pass."""
        self._begun += 1
        if self._calls < CALLS_AHEAD:
            self._calls += 1
            if self._fresh or self._busy:
                self._start()

    def take(self, client: Queueing) -> None:
        """Pass on what a client has sent: now, or when it is its turn."""
        if client.queued:
            return
        self._start()
        cost, left = 0, FRESH_COST - self._cost
        if left > 0 and not (self._fresh or self._is_stuck(client)):
            cost = self._pass_on(client, min(SHARE_COST, left) if self._busy else left)
            if not client.has_more:
                return
        client.wait()
        (self._busy if cost or self._is_stuck(client) else self._fresh).append(client)

    def close(self) -> None:
        """Forget all clients."""
        self._fresh.clear()
        self._busy.clear()
        self._unread.clear()
        for timer in (self._lost, self._look):
            if timer is not None:
                timer.cancel()

    def _pass_on(self, client: Queueing, budget: int) -> int:
        cost = client.pass_on(budget, self._calls)
        self._calls -= client.calls
        if cost:
            client.ahead += cost
            self._cost += cost
            self._unread.setdefault(client, self._now())
        return cost

    def _count(self) -> None:
        """Find out what the core has read."""
        stuck = self._now() - STUCK_S
        for client, since in list(self._unread.items()):
            is_read = client.is_read()
            if is_read or since < stuck:
                self._cost -= client.ahead
                client.ahead = 0
            if is_read:
                del self._unread[client]

    def _is_stuck(self, client: Queueing) -> bool:
        return client in self._unread and not client.ahead

    def _start(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._call_soon(self._turn)

    def _turn(self) -> None:
        self._is_due = False
        self._count()
        before = self._cost
        for queue, limit in ((self._fresh, FRESH_COST), (self._busy, WAITING_COST)):
            kept: list[Queueing] = []  # could pass nothing, and are the first in the next turn
            for _ in range(len(queue)):
                left = limit - self._cost
                if left <= 0:
                    break
                client = queue.popleft()
                if client in self._unread:
                    (self._busy if self._is_stuck(client) else kept).append(client)
                    continue
                cost = self._pass_on(client, min(left, SHARE_COST))
                if not client.has_more:
                    client.resume()
                else:
                    (self._busy if cost else kept).append(client)
            queue.extendleft(reversed(kept))
        if not (self._fresh or self._busy):
            return
        if not self._calls and self._lost is None:
            self._begun_before = self._begun
            self._lost = self._call_later(LOST_S, self._find_lost)
        if self._cost > before:
            self._start()
        elif self._unread and self._look is None:
            self._look = self._call_later(LOOK_S, self._look_again)

    def _look_again(self) -> None:
        self._look = None
        self._start()

    def _find_lost(self) -> None:
        """Forget calls that the core has ended itself, so that the server never begins them."""
        self._lost = None
        if self._begun == self._begun_before:
            self._calls = CALLS_AHEAD
        self._start()
