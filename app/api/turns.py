"""Shares the event loop between callers with more work for it than one turn has room for.

A client may send thousands of requests in one piece, and many are answered as soon as they are
parsed: rejected, unknown, cached. Another asks for an answer of a hundred megabytes, whose encoding
takes most of a second. Such work is done piece by piece, for a millisecond in each turn.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Protocol

TURN_S = 0.001  # of one turn of the event loop, for all that wait
# After each turn in which some still wait. A loop that never waits takes the GIL back before
# another thread has woken up, and so before it asks for it: replicas would starve for seconds.
REST_S = 0.00005


class Participant(Protocol):
    """Has work that can be done piece by piece."""

    def take_turn(self) -> float:
        """Do a piece, of less than a millisecond, and wait again if work is left.

        Returns:
            The seconds that this took, or has caused others to take.
        """


class Turns:
    """One budget of time for all callers of a process; used on the event loop only."""

    def __init__(self) -> None:
        self._waiting: deque[Participant] = deque()
        self._is_scheduled = False

    def wait(self, participant: Participant) -> None:
        """Call `participant.take_turn` in one of the next turns, after those that wait already."""
        self._waiting.append(participant)
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
        finally:  # an error of one must not stop the others
            if self._waiting:
                self._schedule()
                time.sleep(REST_S)
