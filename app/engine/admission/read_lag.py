"""Upper bound on the time that a request spent unread in the socket buffer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from app.engine.clock import Clock

IDLE_S = 0.001  # after a longer time without work, the event loop was waiting for a request


class ReadLag:
    """Follows the turns of the event loop; runs on the event loop.

    Bytes read in a turn were in the socket buffer when the loop polled, and may have arrived just
    after the previous poll.

    Args:
        clock: the engine's clock.
        worked_at: when the loop last finished a turn's work on batches.
    """

    def __init__(self, clock: Clock, worked_at: Callable[[], float]) -> None:
        self._clock = clock
        self._worked_at = worked_at
        self._reading = False  # whether the loop is in the turn that began at `_turn_at`
        self._turn_at = self._read_at = clock.now()
        self._since = 0.0

    def seconds(self) -> float:
        """Upper bound on the time in the buffer of the bytes just read; called for each request."""
        now = self._clock.now()
        if not self._reading:
            self._reading = True
            worked_at = max(self._read_at, self._worked_at())
            self._since = self._turn_at if now - worked_at < IDLE_S else now
            self._turn_at = now
            asyncio.get_running_loop().call_soon(self._has_read)
        return now - self._since

    def _has_read(self) -> None:
        self._reading = False
        self._read_at = self._clock.now()
