"""Requests of a handler that run together."""

from __future__ import annotations

import asyncio

from torchlane.handlers.api import Request


class Run:
    """Requests that run together: one of `predict`, or those of one `predict_batch`.

    Attributes:
        requests: that were not answered, by number.
        cancelled: numbers of requests that need no answer.
        streams: whether the caller takes items as they come.
        task: that runs them; None before it has begun.
        following: runs that begin when this one has ended, one after the other.
    """

    __slots__ = ("cancelled", "following", "requests", "streams", "task")

    def __init__(self) -> None:
        self.requests: dict[int, Request] = {}
        self.cancelled: set[int] = set()
        self.streams = False
        self.task: asyncio.Task[None] | None = None
        self.following: list[Run] = []

    @property
    def is_cancelled(self) -> bool:
        """Whether nobody waits for an answer."""
        return self.requests.keys() <= self.cancelled

    def split(self) -> list[Run]:
        """A run of its own for each request, in place of this one."""
        runs = []
        for number, request in self.requests.items():
            alone = Run()
            alone.requests[number] = request
            alone.cancelled = self.cancelled & {number}
            runs.append(alone)
        self.requests.clear()
        return runs
