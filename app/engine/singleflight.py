"""Single-flight without a leader: equal items in flight share one computation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Generic, TypeVar

from app.engine.submission import Submission
from app.telemetry.tracing import RequestTrace

NOBODY: frozenset[Submission] = frozenset()


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
        self.waiters: set[Submission] = set()


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
        return self._flights.get(key)

    def waiters(self) -> set[Submission]:
        """The requests that wait for any flight."""
        waiters: set[Submission] = set()
        for flight in self._flights.values():
            waiters.update(flight.waiters)
        return waiters

    def labels(self, flights: Sequence[T]) -> list[bytes]:
        """The labels of the requests that wait for these flights, the oldest first."""
        waiters: set[Submission] = set()
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

    def open(self, flight: T, waiter: Submission) -> None:
        """Start a flight with its first waiter.

        Raises:
            RuntimeError: a bug: the key has an open flight.
        """
        if flight.key in self._flights:
            raise RuntimeError("bug: a flight was opened twice")
        self._flights[flight.key] = flight
        flight.waiters.add(waiter)

    def leave(self, key: bytes, waiter: Submission) -> T | None:
        """Leave a flight; return it if no waiter is left."""
        flight = self._flights.get(key)
        if flight is None or waiter not in flight.waiters:
            return None
        flight.waiters.discard(waiter)
        return None if flight.waiters else flight

    def close(self, flight: T) -> Iterable[Submission]:
        """Remove a flight; return its waiters.

        Returns none if it was closed before; another flight for the key may be open since.
        """
        if self._flights.get(flight.key) is not flight:
            return NOBODY
        del self._flights[flight.key]
        return flight.waiters

    def _waiters(self, flight: T) -> Set[Submission]:
        return flight.waiters if self._flights.get(flight.key) is flight else NOBODY


def _number(waiter: Submission) -> int:
    return waiter.number
