"""A request that the engine has accepted, and how its caller gets the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from app.engine.singleflight import Waiter
from app.telemetry.tracing import RequestTrace
from app.types import Answer, CacheCounts, counts_with_found


class Submission:
    """A request that was accepted.

    A coroutine awaits `answer`. A callback is set with `when_settled` and takes `result` then. A
    caller that goes away calls `abandon`.

    Attributes:
        waiter: the request's seat on its flights; for the engine.
        cache: how its items were found; the engine sets it again once they are known.
    """

    __slots__ = ("cache", "waiter")

    def __init__(self, waiter: Waiter, cache: CacheCounts) -> None:
        self.waiter = waiter
        self.cache = cache

    @property
    def is_settled(self) -> bool:
        """Whether `result` can be taken."""
        return self.waiter.is_settled

    @property
    def keys(self) -> Sequence[bytes]:
        """Of the items, in order; equal items have equal ones."""
        return self.waiter.keys

    def when_settled(self, call: Callable[[], None]) -> None:
        """Have `call` made on the event loop once it is settled; only if it is not yet."""
        self.waiter.then = call

    def follow(self, trace: RequestTrace) -> None:
        """Have the batches of its items written down there; called before any is formed."""
        self.waiter.trace = trace

    def fail(self, error: Exception) -> None:
        """End the wait: `result` raises this error. Harmless when it has ended."""
        self.waiter.fail(error)

    def abandon(self) -> None:
        """The caller has gone: `result` raises `Abandoned`, others keep what they wait for."""
        self.waiter.abandon()

    def result(self) -> Answer:
        """The outcomes, in the order of the items; it must be settled.

        Raises:
            DeadlineExceeded, ShuttingDown, Abandoned: no answer came in time.
            Exception: what `fail` was told.
        """
        waiter = self.waiter
        if waiter.error is not None:
            raise waiter.error
        found = waiter.outcomes
        outcomes = [found[key] for key in waiter.keys]
        cache = counts_with_found(self.cache, waiter.found) if waiter.found else self.cache
        return Answer(outcomes, cache, waiter.queue_s, waiter.compute_s, waiter.batch_items)

    async def settled(self) -> None:
        """Return once it is settled. Cancelling it gives the request up as `abandon` does."""
        if self.is_settled:
            return
        woken = asyncio.get_running_loop().create_future()
        self.when_settled(lambda: None if woken.done() else woken.set_result(None))
        try:
            await woken
        except asyncio.CancelledError:
            self.abandon()
            raise

    async def answer(self) -> Answer:
        """Wait for `result`."""
        await self.settled()
        return self.result()
