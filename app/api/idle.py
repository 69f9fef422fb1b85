"""Idle connections make room for new ones, so that they never use up the descriptors."""

from __future__ import annotations

import asyncio
import heapq
import resource
from collections.abc import Collection
from typing import Protocol

MOST_OPEN = 16_384  # scanning more would block the event loop for many milliseconds
SPARE = 64  # a scan also closes a connection for this many allowed ones, so that few are needed
FIRST_S = 1.0  # for a new connection to send its first request
AGAIN_S = 0.1  # until the next scan, if too few were idle


class IdleConnection(Protocol):
    """A connection that may be idle."""

    @property
    def is_closing(self) -> bool:
        """Whether it is about to free its descriptor."""
        raise NotImplementedError

    @property
    def idle_since(self) -> float | None:
        """When it became idle, on the loop's clock.

        None if it is not idle, or if it is so new that its first request may be on its way.
        """
        raise NotImplementedError

    def close_idle(self) -> None:
        """Close it at once."""


def most_connections() -> int:
    """How many connections a process may have before idle ones close early.

    Half of its descriptors: the others are for new connections, models, files and gRPC.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_OPEN if limit == resource.RLIM_INFINITY else max(1, min(MOST_OPEN, limit // 2))


class IdleLimit:
    """Closes those connections that have been idle for longest, if too many are open.

    Args:
        most: number of connections of the process, idle or not.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._is_scheduled = False

    def make_room(
        self, connections: Collection[IdleConnection], loop: asyncio.AbstractEventLoop
    ) -> None:
        """Close idle connections soon if there are too many; called for each new connection.

        All new connections of a turn of the loop cause one scan, in the next turn. Until then, the
        loop reads the requests that have already arrived.
        """
        if not self._is_scheduled and len(connections) > self.most:
            self._is_scheduled = True
            loop.call_soon(self._scan, connections, loop)

    def _scan(
        self, connections: Collection[IdleConnection], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._is_scheduled = False
        excess = sum(not each.is_closing for each in connections) - self.most
        if excess <= 0:
            return
        idle = [
            (since, place, each)  # with the place, connections are never compared
            for place, each in enumerate(connections)
            if (since := each.idle_since) is not None
        ]
        for _, _, each in heapq.nsmallest(excess + self.most // SPARE, idle):
            each.close_idle()
        if len(idle) < excess:  # it must not need a new connection: none may be accepted
            self._is_scheduled = True
            loop.call_later(AGAIN_S, self._scan, connections, loop)
