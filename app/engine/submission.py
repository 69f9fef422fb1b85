"""A request that the engine has accepted, and how its caller gets the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from app.engine.singleflight import Waiter
from app.telemetry.tracing import RequestTrace
from app.types import Answer, CacheCounts, counts_with_found


class Submission:
    """An accepted request.

    A coroutine awaits `answer`. A callback is set with `when_settled` and then calls `result`. A
    caller that leaves calls `abandon`.

    Attributes:
        waiter: the request's place on its flights; for the engine.
        cache: how its items were found; the engine sets it again when they are known.
    """

    __slots__ = ("cache", "waiter")

    def __init__(self, waiter: Waiter, cache: CacheCounts) -> None:
        self.waiter = waiter
        self.cache = cache

    @property
    def is_settled(self) -> bool:
        """Whether `result` can be called."""
        return self.waiter.is_settled

    @property
    def keys(self) -> Sequence[bytes]:
        """Keys of the items, in order; equal items have equal keys."""
        return self.waiter.keys

    def when_settled(self, call: Callable[[], None]) -> None:
        """Call `call` on the event loop when it is settled; it must not be settled yet."""
        self.waiter.then = call

    def follow(self, trace: RequestTrace) -> None:
        """Record the batches of its items in a trace; called before any batch is formed."""
        self.waiter.trace = trace

    def fail(self, error: Exception) -> None:
        """End the wait: `result` raises this error. Harmless if the wait has ended."""
        self.waiter.fail(error)

    def abandon(self) -> None:
        """End the wait because the caller has left: `result` raises `Abandoned`."""
        self.waiter.abandon()

    def result(self) -> Answer:
        """The outcomes, in the order of the items; it must be settled.

        Raises:
            DeadlineExceeded, ShuttingDown, Abandoned: if there was no answer in time.
            Exception: the argument of `fail`.
        """
        waiter = self.waiter
        if waiter.error is not None:
            raise waiter.error
        found = waiter.outcomes
        outcomes = [found[key] for key in waiter.keys]
        cache = counts_with_found(self.cache, waiter.found) if waiter.found else self.cache
        return Answer(outcomes, cache, waiter.queue_s, waiter.compute_s, waiter.batch_items)

    def forget(self) -> None:
        """Drop the outcomes, so that only their reader keeps them; there is no `result` then."""
        self.waiter.outcomes = {}

    async def settled(self) -> None:
        """Return when it is settled. Cancelling this abandons the request, as `abandon` does."""
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
