"""Single-flight without a leader: equal items that wait at the same time share one computation."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from app.errors import Abandoned, DeadlineExceeded, TorchlaneError
from app.types import Outcome

T = TypeVar("T")


class Waiter:
    """One request's seat: it collects one outcome per key and wakes once, when it has them all.

    Args:
        deadline: the moment after which the caller does not want an answer any more.
    """

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.outcomes: dict[bytes, Outcome] = {}
        self.queue_s = 0.0
        self.compute_s = 0.0
        self._pending: set[bytes] = set()
        self._woken: asyncio.Future[None] | None = None
        self._error: TorchlaneError | None = None

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to wait for."""
        return self._error is not None or not self._pending

    @property
    def pending(self) -> frozenset[bytes]:
        """The keys that have no outcome yet."""
        return frozenset(self._pending)

    def expect(self, keys: Iterable[bytes]) -> None:
        """Wait for these keys too."""
        self._pending.update(keys)

    def settle(self, key: bytes, outcome: Outcome, queue_s: float, compute_s: float) -> None:
        """Take one outcome; the times of the slowest item count."""
        self.outcomes[key] = outcome
        self._pending.discard(key)
        self.queue_s = max(self.queue_s, queue_s)
        self.compute_s = max(self.compute_s, compute_s)
        self._wake_if_settled()

    def fail(self, error: TorchlaneError) -> None:
        """End the wait as a whole: deadline, shutdown. Only the first reason counts."""
        if not self.is_settled:
            self._error = error
            self._wake_if_settled()

    def abandon(self) -> None:
        """The caller has gone."""
        self.fail(Abandoned("the caller went away before the answer was ready"))

    def expire(self) -> None:
        """The deadline has passed."""
        self.fail(DeadlineExceeded("the answer was not ready in time; allow more or send less"))

    async def wait(self) -> None:
        """Return when every outcome is there.

        Raises:
            TorchlaneError: the reason why the wait ended without.
        """
        if not self.is_settled:
            self._woken = asyncio.get_running_loop().create_future()
            await self._woken
        if self._error is not None:
            raise self._error

    def _wake_if_settled(self) -> None:
        if self.is_settled and self._woken is not None and not self._woken.done():
            self._woken.set_result(None)


@dataclass(eq=False, slots=True)
class Flight(Generic[T]):
    """One computation and everybody who waits for it; `work` is what the engine queued for it."""

    work: T
    waiters: set[Waiter] = field(default_factory=set)


class SingleFlight(Generic[T]):
    """The flights in the air, by key. Owned by the event loop.

    A flight belongs to nobody: whoever came first may leave, the others keep it.
    """

    def __init__(self) -> None:
        self._flights: dict[bytes, Flight[T]] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def known(self, keys: Iterable[bytes]) -> Mapping[bytes, Flight[T]]:
        """Those of the keys that are in the air."""
        return {key: self._flights[key] for key in keys if key in self._flights}

    def open(self, key: bytes, work: T, waiter: Waiter) -> None:
        """Start a flight with its first waiter.

        Raises:
            RuntimeError: a bug: the key is in the air already.
        """
        if key in self._flights:
            raise RuntimeError("bug: a flight was opened twice")
        self._flights[key] = Flight(work, {waiter})

    def leave(self, key: bytes, waiter: Waiter) -> Flight[T] | None:
        """Leave a flight; returns it when nobody waits for it any more."""
        flight = self._flights.get(key)
        if flight is None or waiter not in flight.waiters:
            return None
        flight.waiters.discard(waiter)
        return None if flight.waiters else flight

    def close(self, key: bytes, work: T) -> frozenset[Waiter]:
        """Take a flight out of the air; returns who waits for its outcome.

        Nobody does when the flight of that work has been closed before: a key may have taken off
        anew since, with other work.
        """
        flight = self._flights.get(key)
        if flight is None or flight.work is not work:
            return frozenset()
        del self._flights[key]
        return frozenset(flight.waiters)
