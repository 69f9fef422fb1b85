"""Single-flight without a leader: equal items in flight share one computation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from typing import Generic, TypeVar

from app.errors import Abandoned, DeadlineExceeded
from app.telemetry.tracing import RequestTrace
from app.types import Outcome

NOBODY: frozenset[Waiter] = frozenset()


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
        found: how many outcomes the second cache had.
    """

    __slots__ = (
        "_missing",
        "batch_items",
        "compute_s",
        "deadline",
        "error",
        "found",
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
        self.found = 0
        self._missing = 0
        self.settled = settled

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to wait for."""
        return self._missing == 0 or self.error is not None

    def expect(self) -> None:
        """Wait for one more outcome, or for the items themselves; see `complete`."""
        self._missing += 1

    def settle(
        self, key: bytes, outcome: Outcome, queue_s: float, compute_s: float, batch_items: int
    ) -> None:
        """Take the outcome of a key; the times of the slowest item count, and the largest batch."""
        self.outcomes[key] = outcome
        self.queue_s = max(self.queue_s, queue_s)
        self.compute_s = max(self.compute_s, compute_s)
        self.batch_items = max(self.batch_items, batch_items)
        self.complete()

    def complete(self) -> None:
        """One thing less to wait for: an outcome, or the items that were still to come."""
        self._missing -= 1
        if self._missing == 0 and self.error is None:
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


class Flight:
    """One computation; a subclass is what the engine queues for it.

    Args:
        key: of its item.

    Attributes:
        waiters: the requests that want its outcome.
    """

    __slots__ = ("key", "waiters")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.waiters: set[Waiter] = set()


T = TypeVar("T", bound=Flight)


class SingleFlight(Generic[T]):
    """The flights in the air, by key. Owned by the event loop.

    A flight has no owner: the first waiter may leave, the others keep it.
    """

    def __init__(self) -> None:
        self._flights: dict[bytes, T] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def get(self, key: bytes) -> T | None:
        """The flight of a key that is in the air."""
        return self._flights.get(key)

    def labels(self, flights: Sequence[T]) -> list[bytes]:
        """What the requests that wait for these are called, the oldest first."""
        waiters: set[Waiter] = set()
        for flight in flights:
            waiters.update(self._waiters(flight))
        return [each.label for each in sorted(waiters, key=_number) if each.label]

    def traces(self, flights: Sequence[T]) -> list[RequestTrace]:
        """Of the requests that wait for these, as far as anything follows them."""
        found = []
        for flight in flights:
            for each in self._waiters(flight):
                if each.trace is not None:
                    found.append(each.trace)  # compiled, a loop is quicker
        return found

    def trace_id(self, flight: T) -> str:
        """Of a trace that a request which waits for it belongs to; empty: none does."""
        for each in self._waiters(flight):
            if each.trace is not None and each.trace.trace_id:
                return each.trace.trace_id
        return ""

    def open(self, flight: T, waiter: Waiter) -> None:
        """Start a flight with its first waiter.

        Raises:
            RuntimeError: a bug: the key is in the air already.
        """
        if flight.key in self._flights:
            raise RuntimeError("bug: a flight was opened twice")
        self._flights[flight.key] = flight
        flight.waiters.add(waiter)

    def leave(self, key: bytes, waiter: Waiter) -> T | None:
        """Leave a flight; returns it when no waiter is left."""
        flight = self._flights.get(key)
        if flight is None or waiter not in flight.waiters:
            return None
        flight.waiters.discard(waiter)
        return None if flight.waiters else flight

    def close(self, flight: T) -> Iterable[Waiter]:
        """Remove a flight; returns its waiters.

        There are none where it was closed before: another one may have opened for the key since.
        """
        waiters = self._waiters(flight)
        if waiters is not NOBODY:
            del self._flights[flight.key]
        return waiters

    def _waiters(self, flight: T) -> Set[Waiter]:
        return flight.waiters if self._flights.get(flight.key) is flight else NOBODY


def _number(waiter: Waiter) -> int:
    return waiter.number
