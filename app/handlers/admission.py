"""Whether a handler accepts requests: its limits, and whether they can be answered in time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from app.errors import DeadlineExceeded, Overloaded, PayloadTooLarge
from app.handlers.contract import HandlerRequest, HandlerSpec
from torchlane.handlers.frames import TO_HANDLER_BYTES

SHARE = 0.1  # of the latest measurement in a moving average


class Situation(NamedTuple):
    """What a pool does when requests arrive.

    Attributes:
        queued: requests that wait for a place.
        queue_limit: the most that may wait.
        room: places that are free.
        places: all places.
        since: when the oldest run began, on `time.monotonic`; None if a place is free at once.
    """

    queued: int
    queue_limit: int
    room: int
    places: int
    since: float | None


class Admission:
    """Checks requests, by what earlier ones took.

    Args:
        spec: of the handler.

    Attributes:
        answer_s: moving average of the seconds in a process until a request has its answer, or the
            first item of it.
    """

    def __init__(self, spec: HandlerSpec) -> None:
        self.answer_s = 0.0
        self._run_s = 0.0  # the same of a run, until its end
        self._spec = spec

    def ran(self, seconds: float) -> None:
        """A run has ended."""
        self._run_s = _moved(self._run_s, seconds)

    def answered(self, seconds: float) -> None:
        """A request has its answer, or its first item."""
        self.answer_s = _moved(self.answer_s, seconds)

    def check(self, requests: Sequence[HandlerRequest], now: float, at: Situation) -> None:
        """Check requests that came together, with one deadline.

        Raises:
            PayloadTooLarge: there are more than it ever takes, or a body is too large.
            DeadlineExceeded: the deadline has passed.
            Overloaded: the queue is full, or the deadline cannot be met.
        """
        spec = self._spec
        size = max(len(each.body) for each in requests)
        if size > TO_HANDLER_BYTES:
            raise PayloadTooLarge(f"the body has {size} bytes, a handler takes {TO_HANDLER_BYTES}")
        left_s = requests[0].deadline - now
        if left_s <= 0:
            raise DeadlineExceeded("the deadline has passed; allow more time or send less")
        if len(requests) > at.queue_limit:
            raise PayloadTooLarge(
                f"{len(requests)} items in one request, the queue of the handler {spec.name} takes "
                f"{at.queue_limit}; split it"
            )
        queued = at.queued + len(requests)
        if not at.queued:
            queued -= at.room * spec.max_batch_size
        if queued <= 0:
            return
        running_s = 0.0 if at.room or at.since is None else self._run_s - (now - at.since)
        ahead = math.ceil(queued / spec.max_batch_size) - 1
        wait_s = max(0.0, running_s) + ahead / at.places * self._run_s
        if queued > at.queue_limit:
            raise Overloaded(
                f"the queue of the handler {spec.name} is full: {at.queued} requests wait", wait_s
            )
        if wait_s + self.answer_s > left_s:
            raise Overloaded(
                f"cannot meet the {left_s * 1000:.0f} ms deadline: {at.queued} requests wait for "
                f"the handler {spec.name}",
                wait_s,
            )


def _moved(average: float, latest: float) -> float:
    """A moving average after one more measurement."""
    return average + (latest - average) * (SHARE if average else 1.0)
