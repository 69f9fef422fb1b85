"""Descriptors of this process: connections leave some of them for files."""

from __future__ import annotations

import os
import resource
import time

import structlog

LOG = structlog.get_logger(__name__)
PAUSE_S = 0.5  # until the next attempt to accept, if descriptors or memory are exhausted
LINE_S = 60.0  # between two lines in the log: callers can open any number of connections
RESERVE = 32  # descriptors for files: models, keys, logs; at low limits an eighth of the limit


def is_free_for_connection(known: int, *, last: bool = False) -> bool:
    """Whether a connection may take a descriptor.

    The kernel assigns the lowest free number, so a high one shows that few are left.

    Args:
        known: any open descriptor.
        last: whether connections may take those that are reserved for files.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        lowest_free = os.dup(known)
    except OSError:  # none is left
        return False
    os.close(lowest_free)
    reserve = 0 if last else min(RESERVE, limit // 8)
    return limit == resource.RLIM_INFINITY or lowest_free < limit - reserve


class Shortage:
    """Logs what a lack of descriptors or memory does to connections, at most once per LINE_S.

    Args:
        event: what it does.
    """

    def __init__(self, event: str = "cannot_accept") -> None:
        self._event = event
        self._times = 0  # not logged yet
        self._next_line = 0.0

    def tell(self, reason: str | None = None) -> None:
        """Count it, and log it if a line is due.

        Args:
            reason: of the system; None: the descriptors that are not reserved are used up.
        """
        self._times += 1
        now = time.monotonic()
        if now < self._next_line:
            return
        self._next_line = now + LINE_S
        LOG.error(self._event, reason=reason or "too many open files", times=self._times)
        self._times = 0
