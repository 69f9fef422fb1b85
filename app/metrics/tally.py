"""Counts of this process, kept as plain numbers until they are read.

A counter of prometheus_client takes a lock for each count, and a histogram searches its buckets for
each observation. A request has six such updates, which took 9 % of its time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple


class Tally:
    """A counter.

    Args:
        hand_over: called with the count since its last call.

    Attributes:
        amount: the count since then; callers on the hot path add to it.
    """

    __slots__ = ("_hand_over", "amount")

    def __init__(self, hand_over: Callable[[float], None]) -> None:
        self._hand_over = hand_over
        self.amount = 0.0

    def inc(self, amount: float = 1) -> None:
        """Add an amount, which must not be negative."""
        self.amount += amount

    def flush(self) -> None:
        """Hand over the count."""
        amount, self.amount = self.amount, 0.0
        if amount:
            self._hand_over(amount)


class TotalTally:
    """A counter whose total is kept elsewhere.

    Args:
        total: returns the total, which never decreases.
        hand_over: called with the increase since its last call.
    """

    __slots__ = ("_hand_over", "_handed_over", "_total")

    def __init__(self, total: Callable[[], int], hand_over: Callable[[float], None]) -> None:
        self._total = total
        self._hand_over = hand_over
        self._handed_over = 0

    def flush(self) -> None:
        """Hand over the increase."""
        total = self._total()
        self._hand_over(total - self._handed_over)
        self._handed_over = total


class TracedObservation(NamedTuple):
    """An observation that belongs to a trace.

    Attributes:
        at: seconds since 1970.
    """

    trace_id: str
    amount: float
    at: float


class HistogramTally:
    """A histogram.

    Args:
        bounds: upper bounds of the buckets, ascending and inclusive. The last bucket has none.
        hand_over: called with the number of observations per bucket since its last call, their sum,
            and the last observation of each bucket that belongs to a trace.
    """

    __slots__ = ("_bounds", "_counts", "_hand_over", "_total", "_traced")

    def __init__(
        self,
        bounds: Sequence[float],
        hand_over: Callable[[Sequence[int], float, Mapping[int, TracedObservation]], None],
    ) -> None:
        self._bounds = [float(bound) for bound in bounds]
        self._hand_over = hand_over
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0
        self._traced: dict[int, TracedObservation] = {}

    def observe(self, amount: float, trace_id: str = "") -> None:
        """Record one observation, and the trace that it belongs to."""
        bounds = self._bounds
        bucket, end = 0, len(bounds)
        while bucket < end:  # compiled, this is faster than a call of `bisect_left`
            middle = (bucket + end) // 2
            if bounds[middle] < amount:
                bucket = middle + 1
            else:
                end = middle
        self._counts[bucket] += 1
        self._total += amount
        if trace_id:
            self._traced[bucket] = TracedObservation(trace_id, amount, time.time())

    def flush(self) -> None:
        """Hand over the observations."""
        counts, total = self._counts, self._total
        if any(counts):
            traced, self._traced = self._traced, {}
            self._counts, self._total = [0] * len(counts), 0.0
            self._hand_over(counts, total, traced)
