"""Shares each turn of the event loop between connections whose clients send ahead.

A client may send thousands of requests in one piece, and many are answered as soon as they are
parsed: rejected, unknown, cached. A connection therefore parses one request at a time, and those
that it was sent ahead only as long as the budget of the turn lasts; then others have their turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

TURN_S = 0.001  # of parsing and answering requests that were sent ahead, of all connections


class Reader(Protocol):
    """A connection with bytes that it has received and not parsed."""

    def take_turn(self) -> float:
        """Parse a piece, and wait again if bytes are left.

        Returns:
            The seconds that this took, or has caused others to take.
        """


class Turns:
    """One budget for all connections of a process; used on the event loop only."""

    def __init__(self) -> None:
        self._waiting: deque[Reader] = deque()
        self._is_scheduled = False

    def wait(self, reader: Reader) -> None:
        """Call `reader.take_turn` in one of the next turns, after those that wait already."""
        self._waiting.append(reader)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._is_scheduled = False
        spent_s = 0.0
        try:
            while self._waiting and spent_s < TURN_S:
                spent_s += self._waiting.popleft().take_turn()
        finally:  # an error of one connection must not stop the others
            if self._waiting:
                self._schedule()
