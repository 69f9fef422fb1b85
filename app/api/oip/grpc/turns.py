"""In which order clients' frames reach gRPC's core, and how many in a turn of the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

FRESH_COST = 256  # of what may pass in a turn of the event loop without waiting
WAITING_COST = 128  # of what has waited
SHARE_COST = 32  # of one connection, if others wait
CALLS_AHEAD = 64  # calls that have passed, but that the server has not begun
LOST_S = 0.02  # if none begins in this time, the core has none left


class Queueing(Protocol):
    """A client, as it takes turns.

    Attributes:
        queued: whether it waits for its turn.
        has_more: whether it has something left to pass on after its last turn.
        calls: heads of calls that it has passed on in its last turn.
    """

    queued: bool
    has_more: bool
    calls: int

    def pass_on(self, budget: int, calls: int) -> int:
        """Pass on what may pass now; returns its cost."""

    def wait(self) -> None:
        """Read no more until it is this client's turn."""

    def resume(self) -> None:
        """Read again."""


class Turns:
    """Shares the core and the event loop between clients.

    Calls pass only as fast as the server begins them: those ahead would wait in the core, where a
    flood of calls delays or ends the calls of others.

    Args:
        call_soon: calls a function in the next turn of the event loop.
        call_later: the same after some seconds.
    """

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        call_later: Callable[[float, Callable[[], None]], asyncio.TimerHandle],
    ) -> None:
        self._call_soon = call_soon
        self._call_later = call_later
        # As in fair queueing (RFC 8290, FQ-CoDel): a client that has just begun to wait goes before
        # those that always have more.
        self._fresh: deque[Queueing] = deque()
        self._busy: deque[Queueing] = deque()
        self._fresh_left = FRESH_COST
        self._calls = CALLS_AHEAD
        self._begun = 0
        self._begun_before = 0
        self._timer: asyncio.TimerHandle | None = None
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
        cost = 0
        if self._fresh_left > 0:
            share = SHARE_COST if self._busy else self._fresh_left
            cost = self._pass_on(client, min(share, self._fresh_left))
            self._fresh_left -= cost
            if not client.has_more:
                return
        client.wait()
        (self._busy if cost else self._fresh).append(client)

    def close(self) -> None:
        """Forget all clients."""
        self._fresh.clear()
        self._busy.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _pass_on(self, client: Queueing, budget: int) -> int:
        cost = client.pass_on(budget, self._calls)
        self._calls -= client.calls
        return cost

    def _start(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._call_soon(self._turn)

    def _turn(self) -> None:
        self._is_due = False
        self._fresh_left = FRESH_COST
        left = WAITING_COST
        for queue in (self._fresh, self._busy):
            for _ in range(len(queue)):
                if left <= 0:
                    break
                client = queue.popleft()
                cost = self._pass_on(client, min(left, SHARE_COST))
                left -= cost
                if not client.has_more:
                    client.resume()
                elif cost:
                    self._busy.append(client)
                else:
                    queue.append(client)
        if left < WAITING_COST:
            self._start()
        elif (self._fresh or self._busy) and self._timer is None:  # no call may pass
            self._begun_before = self._begun
            self._timer = self._call_later(LOST_S, self._find_lost)

    def _find_lost(self) -> None:
        """Forget calls that the core has ended itself, so that the server never begins them."""
        self._timer = None
        if self._begun == self._begun_before:
            self._calls = CALLS_AHEAD
        self._start()
