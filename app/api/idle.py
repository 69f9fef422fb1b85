"""Idle connections make room for new ones, so that they never use up the descriptors."""

from __future__ import annotations

import heapq
import sys
from collections.abc import Collection
from operator import attrgetter
from typing import Protocol

MOST_OPEN = 16_384  # scanning more would block the event loop for milliseconds
FEW = 16  # closed at once, at least: each time costs a scan of all connections
AGAIN_S = 0.1  # until the next scan, if none was idle


class IdleConnection(Protocol):
    """A connection that may be idle."""

    @property
    def idle_since(self) -> float | None:
        """When it became idle, on the loop's clock; None if it is not."""
        raise NotImplementedError

    def close_idle(self) -> None:
        """Close it at once."""


def most_connections() -> int:
    """How many connections a process may have before idle ones close early.

    Half of its descriptors: the others are for new connections, models, files and gRPC.
    """
    if sys.platform == "win32":
        return MOST_OPEN
    import resource  # noqa: PLC0415  # not on Windows

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_OPEN if limit == resource.RLIM_INFINITY else max(1, min(MOST_OPEN, limit // 2))


class IdleLimit:
    """Closes those connections that have been idle for longest, if too many are open.

    Args:
        most: number of connections of the process, idle or not.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._next_scan = 0.0

    def make_room(self, connections: Collection[IdleConnection], now: float) -> None:
        """Close idle connections if there are too many; called for each new connection."""
        excess = len(connections) - self.most
        if excess <= 0 or now < self._next_scan:
            return
        idle = [each for each in connections if each.idle_since is not None]
        if not idle:
            self._next_scan = now + AGAIN_S
        for each in heapq.nsmallest(max(excess, FEW), idle, key=attrgetter("idle_since")):
            each.close_idle()
