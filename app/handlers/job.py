"""Requests that a pool has accepted, and how their callers get the answers."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import structlog

from app.errors import Abandoned
from app.handlers.contract import HandlerAnswer, HandlerRequest
from torchlane.handlers.frames import MalformedFrame, fits

LOG = structlog.get_logger(__name__)
ITEM_S, BYTES_PER_S = 0.05, 1e6  # a reader is slow that takes longer for an item, and fewer bytes


class Owner(Protocol):
    """What runs jobs."""

    def settled(self, job: Job) -> None:
        """A job is settled: by its answer, by an error, or because its caller has left."""

    def taken(self, job: Job) -> None:
        """An item of a job's stream has gone to its reader."""


class Job:
    """Implements `HandlerJob`.

    Args:
        request: of the caller.
        owner: is told when it is settled.
        began: when the request came, on `time.monotonic`.

    Attributes:
        is_settled: see `HandlerJob`.
        started: when it went to a process; 0 before that.
        run: what it runs in; None before that.
        error: why there is no answer.
        timer: ends it at its deadline.
        ahead: bytes of each item of its stream that was not taken, the oldest first.
        first_at: when its first item came, on `time.monotonic`; 0: none has.
        moved_at: when an item last came or was taken; 0: none was.
    """

    __slots__ = (
        "_answer",
        "_full_at",
        "_owner",
        "_slow_s",
        "_then",
        "ahead",
        "began",
        "error",
        "first_at",
        "is_settled",
        "moved_at",
        "request",
        "run",
        "started",
        "timer",
    )

    def __init__(self, request: HandlerRequest, owner: Owner, began: float) -> None:
        self.request = request
        self.began = began
        self.is_settled = False
        self.started = 0.0
        self.run: Run | None = None
        self.error: Exception | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.ahead: deque[int] = deque()
        self.first_at = self.moved_at = 0.0
        self._full_at = 0.0  # since when its code waits for its reader; 0: it does not
        self._slow_s = 0.0  # for which it waited before, less what each item may take
        self._owner = owner
        self._answer: HandlerAnswer | None = None
        self._then: Callable[[], None] | None = None

    def when_settled(self, call: Callable[[], None]) -> None:
        self._then = call

    def item(self, body: bytes, now: float) -> None:
        """Pass on an item of its stream.

        Raises:
            MalformedFrame: it may send none, or not one more.
        """
        take = self.request.on_item
        if take is None or not fits(self.ahead, len(body)):
            raise MalformedFrame("an item of a stream that nobody waits for")
        if not self.first_at:
            self.first_at = now
            self.request = replace(self.request, body=b"")  # a stream may last for hours
        self.ahead.append(len(body))
        self.moved_at = now
        if not self._full_at and not fits(self.ahead, len(body)):  # another one like it
            self._full_at = now
        take(body)

    def taken(self) -> None:
        size = self.ahead.popleft()
        self.moved_at = time.monotonic()
        due_s = max(ITEM_S, size / BYTES_PER_S)
        if self._full_at and fits(self.ahead, size):
            self._slow_s, self._full_at = self.slow_s(self.moved_at), 0.0
        self._slow_s = max(0.0, self._slow_s - due_s)
        if not self.is_settled:
            self._owner.taken(self)

    def slow_s(self, now: float) -> float:
        """Seconds for which its stream has waited for its reader, in all, beyond what is usual."""
        return self._slow_s + (now - self._full_at if self._full_at else 0.0)

    def abandon(self) -> None:
        self.fail(Abandoned("the caller disconnected before the answer was ready"))

    def fail(self, error: Exception) -> None:
        if not self.is_settled:
            self.error = error
            self._settle()

    def answer(self, answer: HandlerAnswer) -> None:
        """End the wait with an answer. Harmless if the wait has ended."""
        if not self.is_settled:
            self._answer = answer
            self._settle()

    def result(self) -> HandlerAnswer:
        if self.error is not None:
            raise self.error
        if self._answer is None:
            raise RuntimeError("bug: a job was read before it was settled")
        return self._answer

    def _settle(self) -> None:
        self.is_settled = True
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self._owner.settled(self)
        then, self._then = self._then, None
        if then is not None:
            try:
                then()
            except Exception:  # a bug: other jobs must still be settled
                LOG.exception("answer_failed")


class Run:
    """Jobs that a process runs together, and that take one of its places.

    Attributes:
        jobs: by number, until the process has answered.
        live: how many of the jobs still wait.
        grace: ends the process if the cancelled code does not end.
        started: when it began, on `time.monotonic`.
    """

    __slots__ = ("grace", "jobs", "live", "started")

    def __init__(self, started: float) -> None:
        self.jobs: dict[int, Job] = {}
        self.live = 0
        self.grace: asyncio.TimerHandle | None = None
        self.started = started
