"""A request that the engine has accepted, and how its caller gets the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence

from app.engine.singleflight import Waiter
from app.errors import Abandoned, ItemFailed, TorchlaneError
from app.metrics import ModelMetrics
from app.types import Answer, CacheCounts


class Submission:
    """A request that was accepted; its holder must await `answer`, once, or work would leak.

    Args:
        waiter: the request's seat on its flights.
        keys: of its items, in order; equal items have equal ones.
        cache: how they were found.
        metrics: where their outcomes are counted.
        wait: returns when the waiter is settled, and gives up what is open when it is not.
    """

    def __init__(
        self,
        waiter: Waiter,
        keys: Sequence[bytes],
        cache: CacheCounts,
        metrics: ModelMetrics,
        wait: Callable[[], Coroutine[None, None, None]],
    ) -> None:
        self._waiter = waiter
        self._keys = keys
        self._cache = cache
        self._metrics = metrics
        self._wait = wait

    @property
    def is_settled(self) -> bool:
        """Whether `answer` will return without waiting."""
        return self._waiter.is_settled

    def abandon(self) -> None:
        """The caller has gone: `answer` raises `Abandoned`, others keep what they wait for."""
        self._waiter.abandon()

    async def answer(self) -> Answer:
        """The outcomes, once they are all there.

        Cancelling it gives the request up as `abandon` does.

        Raises:
            DeadlineExceeded, ShuttingDown, Abandoned: no answer came in time.
        """
        waiter, count = self._waiter, self._metrics.outcome
        try:
            if not waiter.is_settled:
                await self._wait()
        except TorchlaneError as error:
            count(error.code, len(self._keys))
            raise
        except asyncio.CancelledError:
            count(Abandoned.code, len(self._keys))
            raise
        outcomes = [waiter.outcomes[key] for key in self._keys]
        failures = [outcome for outcome in outcomes if isinstance(outcome, ItemFailed)]
        for failure in failures:
            count(failure.code)
        count("ok", len(outcomes) - len(failures))
        return Answer(outcomes, self._cache, waiter.queue_s, waiter.compute_s)
