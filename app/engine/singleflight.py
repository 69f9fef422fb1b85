"""Single-flight without a leader: equal items in flight share one computation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from typing import Generic, TypeVar

from app.errors import Abandoned, DeadlineExceeded
from app.telemetry.tracing import RequestTrace
from app.types import Outcome

NOBODY: frozenset[Waiter] = frozenset()


class Waiter:
    """One request's place on its flights; collects one outcome per key, and notifies once.

    Args:
        deadline: the moment after which the caller no longer wants an answer.
        settled: see below.
        label: the request's name in the log; empty if it has none.
        began: when the request was submitted.

    Attributes:
        keys: keys of the request's items, in order; equal items have equal keys.
        outcomes: outcomes so far, by key.
        error: why the wait has ended without all outcomes.
        queue_s, compute_s: the most seconds that any item was queued, or computed.
        batch_items: size of the largest batch.
        settled: called with the last outcome, or when the wait ends without it.
        then: the caller's callback for that moment.
        number: its number among the open waiters; 0 if it never waited.
        trace: the request's trace, if a sink follows it.
        found: number of outcomes from the second cache.
        invalid: number of items that were left out because they do not fit the model.
    """

    __slots__ = (
        "_missing",
        "batch_items",
        "began",
        "compute_s",
        "deadline",
        "error",
        "found",
        "invalid",
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
        self,
        deadline: float,
        settled: Callable[[Waiter], None],
        label: bytes = b"",
        began: float = 0.0,
    ) -> None:
        self.deadline = deadline
        self.began = began
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
        self.invalid = 0
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
        """Record the outcome of a key; keep the longest times and the largest batch."""
        self.outcomes[key] = outcome
        self.queue_s = max(self.queue_s, queue_s)
        self.compute_s = max(self.compute_s, compute_s)
        self.batch_items = max(self.batch_items, batch_items)
        self.complete()

    def complete(self) -> None:
        """Record that an awaited outcome, or the request's items, have arrived."""
        self._missing -= 1
        if self._missing == 0 and self.error is None:
            self.settled(self)

    def fail(self, error: Exception) -> None:
        """End the whole wait, such as at the deadline or shutdown; only the first error counts."""
        if not self.is_settled:
            self.error = error
            self.settled(self)

    def abandon(self) -> None:
        """End the wait because the caller has disconnected."""
        self.fail(Abandoned("the caller disconnected before the answer was ready"))

    def expire(self) -> None:
        """End the wait because the deadline has passed."""
        self.fail(DeadlineExceeded("the deadline has passed; allow more time or send less"))


class Flight:
    """One computation; the engine queues a subclass of it.

    Args:
        key: the key of its item.

    Attributes:
        waiters: the requests that want its outcome.
    """

    __slots__ = ("key", "waiters")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.waiters: set[Waiter] = set()


T = TypeVar("T", bound=Flight)


class SingleFlight(Generic[T]):
    """The open flights, by key. Owned by the event loop.

    A flight has no owner: if the first waiter leaves, the others keep it.
    """

    def __init__(self) -> None:
        self._flights: dict[bytes, T] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def get(self, key: bytes) -> T | None:
        """The open flight of a key."""
        return self._flights.get(key)

    def labels(self, flights: Sequence[T]) -> list[bytes]:
        """The labels of the requests that wait for these flights, the oldest first."""
        waiters: set[Waiter] = set()
        for flight in flights:
            waiters.update(self._waiters(flight))
        return [each.label for each in sorted(waiters, key=_number) if each.label]

    def traces(self, flights: Sequence[T]) -> list[RequestTrace]:
        """The traces of the requests that wait for these flights, if sinks follow them."""
        found = []
        for flight in flights:
            for each in self._waiters(flight):
                if each.trace is not None:
                    found.append(each.trace)  # compiled, a loop is faster
        return found

    def trace_id(self, flight: T) -> str:
        """The trace id of a request that waits for the flight; empty if no request has one."""
        for each in self._waiters(flight):
            if each.trace is not None and each.trace.trace_id:
                return each.trace.trace_id
        return ""

    def open(self, flight: T, waiter: Waiter) -> None:
        """Start a flight with its first waiter.

        Raises:
            RuntimeError: a bug: the key has an open flight.
        """
        if flight.key in self._flights:
            raise RuntimeError("bug: a flight was opened twice")
        self._flights[flight.key] = flight
        flight.waiters.add(waiter)

    def leave(self, key: bytes, waiter: Waiter) -> T | None:
        """Leave a flight; return it if no waiter is left."""
        flight = self._flights.get(key)
        if flight is None or waiter not in flight.waiters:
            return None
        flight.waiters.discard(waiter)
        return None if flight.waiters else flight

    def close(self, flight: T) -> Iterable[Waiter]:
        """Remove a flight; return its waiters.

        Returns none if it was closed before; another flight for the key may be open since.
        """
        waiters = self._waiters(flight)
        if waiters is not NOBODY:
            del self._flights[flight.key]
        return waiters

    def _waiters(self, flight: T) -> Set[Waiter]:
        return flight.waiters if self._flights.get(flight.key) is flight else NOBODY


def _number(waiter: Waiter) -> int:
    return waiter.number
