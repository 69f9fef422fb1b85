"""Upper bound on the time a request spent unread in the socket buffer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from app.engine.clock import Clock

IDLE_S = 0.001  # without work for longer, the event loop has waited for a request


class ReadLag:
    """Follows the turns of the event loop, on the event loop.

    What is read in a turn was in the socket buffer when the loop polled, and may have come just
    after the poll before that one.

    Args:
        clock: the engine's.
        worked_at: when the loop has last ended a turn's work on batches.
    """

    def __init__(self, clock: Clock, worked_at: Callable[[], float]) -> None:
        self._clock = clock
        self._worked_at = worked_at
        self._reading = False  # the loop is in the turn that began at:
        self._turn_at = self._read_at = clock.now()
        self._since = 0.0

    def seconds(self) -> float:
        """Upper bound on the wait of the bytes just read; called for each request."""
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
