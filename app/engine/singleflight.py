"""Single-flight without a leader: equal items in flight share one computation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from app.errors import Abandoned, DeadlineExceeded
from app.telemetry.tracing import RequestTrace
from app.types import Outcome

T = TypeVar("T")
UNKNOWN = b""  # in place of the keys of items that are still to come


class Waiter:
    """One request's seat: it collects one outcome per key and tells once that it has them all.

    Args:
        deadline: the moment after which the caller does not want an answer any more.
        settled: see below.
        label: what the log calls the request; empty: nothing.

    Attributes:
        keys: of the request's items, in order; equal items have equal ones.
        outcomes: what has come so far, by key.
        error: why the wait has ended without all of them.
        queue_s: of the slowest item, like `compute_s`.
        batch_items: of the largest batch.
        settled: told when the last outcome has come, or the wait has ended without.
        then: what the caller wants done when it is settled.
        number: among the open waiters; 0: it never waited.
        trace: of the request, if anything follows it.
    """

    __slots__ = (
        "_pending",
        "batch_items",
        "compute_s",
        "deadline",
        "error",
        "keys",
        "label",
        "number",
        "outcomes",
        "queue_s",
        "settled",
        "then",
        "trace",
    )

    def __init__(
        self, deadline: float, settled: Callable[[Waiter], None], label: bytes = b""
    ) -> None:
        self.deadline = deadline
        self.label = label
        self.keys: list[bytes] = []
        self.outcomes: dict[bytes, Outcome] = {}
        self.error: Exception | None = None
        self.queue_s = 0.0
        self.compute_s = 0.0
        self.batch_items = 0
        self.then: Callable[[], None] | None = None
        self.number = 0
        self.trace: RequestTrace | None = None
        self._pending: set[bytes] = set()
        self.settled = settled

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to wait for."""
        return not self._pending or self.error is not None

    @property
    def pending(self) -> frozenset[bytes]:
        """The keys that have no outcome yet."""
        return frozenset(self._pending)

    def expect(self, key: bytes) -> None:
        """Wait for this key too."""
        self._pending.add(key)

    def settle(
        self, key: bytes, outcome: Outcome, queue_s: float, compute_s: float, batch_items: int
    ) -> None:
        """Take one outcome; the times of the slowest item count, and the largest batch."""
        self.outcomes[key] = outcome
        self.queue_s = max(self.queue_s, queue_s)
        self.compute_s = max(self.compute_s, compute_s)
        self.batch_items = max(self.batch_items, batch_items)
        self._pending.discard(key)
        if not self._pending and self.error is None:
            self.settled(self)

    def complete(self) -> None:
        """All keys are known that were not when it was told to expect `UNKNOWN`."""
        self._pending.discard(UNKNOWN)
        if not self._pending and self.error is None:
            self.settled(self)

    def fail(self, error: Exception) -> None:
        """End the wait as a whole: deadline, shutdown. Only the first reason counts."""
        if not self.is_settled:
            self.error = error
            self.settled(self)

    def abandon(self) -> None:
        """The caller has gone."""
        self.fail(Abandoned("the caller went away before the answer was ready"))

    def expire(self) -> None:
        """The deadline has passed."""
        self.fail(DeadlineExceeded("the answer was not ready in time; allow more or send less"))


class Flight(Generic[T]):
    """One computation and its waiters.

    Args:
        work: what the engine queued for it.
        first: the waiter that asked for it first.
    """

    __slots__ = ("waiters", "work")

    def __init__(self, work: T, first: Waiter) -> None:
        self.work = work
        self.waiters = {first}


class SingleFlight(Generic[T]):
    """The flights in the air, by key. Owned by the event loop.

    A flight has no owner: the first waiter may leave, the others keep it.
    """

    def __init__(self) -> None:
        self._flights: dict[bytes, Flight[T]] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def get(self, key: bytes) -> Flight[T] | None:
        """The flight of a key that is in the air."""
        return self._flights.get(key)

    def labels(self, flights: Sequence[tuple[bytes, T]]) -> list[bytes]:
        """What the requests that wait for these keys and works are called, the oldest first."""
        return [each.label for each in sorted(self._waiters(flights), key=_number) if each.label]

    def traces(self, flights: Sequence[tuple[bytes, T]]) -> list[RequestTrace]:
        """Of the requests that wait for these keys and works, where anything follows them."""
        return [each.trace for each in self._waiters(flights) if each.trace is not None]

    def _waiters(self, flights: Sequence[tuple[bytes, T]]) -> set[Waiter]:
        waiters: set[Waiter] = set()
        for key, work in flights:
            flight = self._flights.get(key)
            if flight is not None and flight.work is work:
                waiters |= flight.waiters
        return waiters

    def open(self, key: bytes, work: T, waiter: Waiter) -> None:
        """Start a flight with its first waiter.

        Raises:
            RuntimeError: a bug: the key is in the air already.
        """
        if key in self._flights:
            raise RuntimeError("bug: a flight was opened twice")
        self._flights[key] = Flight(work, waiter)

    def leave(self, key: bytes, waiter: Waiter) -> Flight[T] | None:
        """Leave a flight; returns it when no waiter is left."""
        flight = self._flights.get(key)
        if flight is None or waiter not in flight.waiters:
            return None
        flight.waiters.discard(waiter)
        return None if flight.waiters else flight

    def close(self, key: bytes, work: T) -> frozenset[Waiter]:
        """Remove a flight; returns its waiters.

        There are none where the flight of that work was closed before: another flight may have
        opened for the key since, with other work.
        """
        flight = self._flights.get(key)
        if flight is None or flight.work is not work:
            return frozenset()
        del self._flights[key]
        return frozenset(flight.waiters)


def _number(waiter: Waiter) -> int:
    return waiter.number
