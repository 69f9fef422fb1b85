"""The cost model: a batch takes its warm-up time, times a drift factor, plus an overhead."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence

from app.engine.batch_policy import Ahead
from app.types import BatchTimes

LEAST_S = 1e-9  # keeps every time above zero


class CostCurves:
    """Seconds of a batch by its number of items and their length, one curve for each length.

    Args:
        measured: may be empty.

    Attributes:
        lengths: the measured lengths, ascending.
    """

    __slots__ = ("_curves", "_seconds", "lengths")

    def __init__(self, measured: BatchTimes) -> None:
        self.lengths = sorted(length for length, times in measured.items() if times)
        self._curves = [_ascending(measured[length]) for length in self.lengths]
        self._seconds: dict[tuple[int, int], float] = {}

    def seconds(self, items: int, length: int) -> float:
        """Seconds of a batch, interpolated between sizes and lengths; 0 without measurements."""
        key = items, length
        seconds = self._seconds.get(key)
        if seconds is None:
            seconds = self._seconds[key] = self._estimated(items, length)
        return seconds

    def most_items(self, length: int) -> int:
        """Maximum number of items of this length in a batch no larger than a measured one.

        There must be measurements.
        """
        lengths = self.lengths
        at = min(bisect_left(lengths, length), len(lengths) - 1)
        most = self._curves[at][0][-1]
        if lengths[at] < length:  # longer than all measured lengths
            return most * lengths[at] // length
        if at:
            return max(most, self._curves[at - 1][0][-1] * lengths[at - 1] // length)
        return most

    def _estimated(self, items: int, length: int) -> float:
        lengths = self.lengths
        if not lengths:
            return 0.0
        if length <= lengths[0]:
            return interpolated(*self._curves[0], items)
        at = min(bisect_left(lengths, length), len(lengths) - 1)
        of_it = interpolated(*self._curves[at], items)
        if length == lengths[at]:
            return of_it
        if length > lengths[at]:
            return of_it * length / lengths[at]
        return interpolated(
            (lengths[at - 1], lengths[at]),
            (interpolated(*self._curves[at - 1], items), of_it),
            length,
        )


def _ascending(measured: Mapping[int, float]) -> tuple[list[int], list[float]]:
    """Numbers of items and their seconds, both ascending."""
    items = sorted(measured)
    seconds = [max(LEAST_S, measured[each]) for each in items]
    for at in range(len(items) - 2, -1, -1):  # other work on the machine only adds time
        seconds[at] = min(seconds[at], seconds[at + 1])
    return items, seconds


def interpolated(known: Sequence[int], seconds: Sequence[float], items: int) -> float:
    """Seconds of a batch of `items`, estimated from other sizes.

    Linear between two sizes, proportional beyond the largest, and constant below the smallest, so
    that an error is an overestimate.

    Args:
        known: sizes, ascending; if empty, the result is 0.
        seconds: seconds of each size.
        items: number of items in the batch.
    """
    if not known:
        return 0.0
    at = bisect_left(known, items)
    if at == len(known):
        return seconds[-1] * items / known[-1]
    if at == 0 or known[at] == items:
        return seconds[at]
    share = (items - known[at - 1]) / (known[at] - known[at - 1])
    return seconds[at - 1] + (seconds[at] - seconds[at - 1]) * share


WEIGHT = 0.1  # of the newest batch in a running mean
SCATTER_WEIGHT = 0.05  # of the newest batch in the deviation, where outliers count less
OUTLIER = 5.0  # times the estimate: the most by which one batch counts as longer or shorter
NO_PRESSURE = 8  # if this many full batches fit into the time allowed, smaller ones gain nothing
HASTE = 0.5  # a batch that takes all the time allowed is worth half as much as one that takes none
HARDLY_LONGER = 1.25  # times a batch of one: acceptable if no batch meets the deadline
EFFICIENT = 0.9  # share of the best throughput that makes a batch worth preparing
TURN_S = 0.0005  # time for the event loop and the thread to start a batch
GROW_AFTER_S = 60.0  # after running out of memory, twice the size is tried again


class RunningMean:
    """A running mean that ignores isolated outliers but follows three in a row on one side.

    After three, the one nearest to the mean becomes the new value.

    Args:
        value: the initial value.
    """

    __slots__ = ("_outliers", "value")

    def __init__(self, value: float) -> None:
        self.value = value
        self._outliers: list[float] = []

    def add(self, figure: float, least: float, most: float) -> None:
        """Add a figure, which is an outlier if it is outside the range `least` to `most`."""
        if least <= figure <= most:
            self._outliers.clear()
        else:
            too_large = figure > most
            if self._outliers and too_large is not (self._outliers[-1] > self.value):
                self._outliers.clear()
            self._outliers.append(figure)
            if len(self._outliers) == 3:
                self.value = min(self._outliers) if too_large else max(self._outliers)
                self._outliers.clear()
                return
            figure = min(max(figure, least), most)
        self.value += WEIGHT * (figure - self.value)


class BatchCost:
    """Seconds of a batch by its number of items and their length, for one model on one replica.

    Every batch corrects the estimates of all sizes; a slowdown of one size alone is detected late.
    Owned by the event loop. The length is that to which the items of a batch are padded, and 0 for
    models without padding.

    Args:
        largest: maximum number of items in one batch.
        measured: times from warm-up; if empty, the first batch is used instead.

    Attributes:
        deviation: running mean of the relative deviation of batches from their expected time.
        is_limited: whether batches are smaller for a while, after running out of memory.
    """

    __slots__ = (
        "_batches",
        "_curves",
        "_drift",
        "_fits",
        "_full",
        "_grow_at",
        "_guessed",
        "_outlier_ended",
        "_overhead",
        "_prepared_s",
        "_tables",
        "_whole",
        "deviation",
        "is_limited",
        "largest",
    )

    def __init__(self, largest: int, measured: BatchTimes) -> None:
        self.largest = largest
        self.deviation = 0.0
        self.is_limited = False
        # Places in a batch (items times length), limited after running out of memory.
        self._fits = self._whole = math.inf
        self._guessed = False
        self._curves = CostCurves(measured)
        self._drift = RunningMean(1.0)
        self._overhead = RunningMean(0.0)
        self._outlier_ended = -math.inf
        self._batches = 0
        self._prepared_s = 0.0
        self._grow_at = 0.0
        # Caches by length, cleared by every change.
        self._tables: dict[int, list[tuple[int, float]]] = {}
        self._full: dict[int, tuple[int, float]] = {}

    def expected_s(self, items: int, length: int = 0) -> float:
        """Seconds of a batch of `items`; 0 until a batch has been measured."""
        compute_s = self._curves.seconds(items, length) * self._drift.value
        return compute_s + self._overhead.value if compute_s > 0 else 0.0

    def compute_s(self, items: int, length: int = 0) -> float:
        """Seconds of a batch in the model alone; 0 until a batch has been measured."""
        return self._curves.seconds(items, length) * self._drift.value

    def most_of(self, length: int) -> int:
        """The current maximum of items of this length in one batch.

        Larger batches did not fit into memory, or were not measured because they gain nothing.
        """
        largest = self.largest
        if self._fits < self._whole:
            largest = max(1, min(largest, int(self._fits) // max(1, length)))
        if length == 0 or not self._curves.lengths or self._guessed:
            return largest
        return max(1, min(self._curves.most_items(length), largest))

    def full(self, length: int = 0) -> tuple[int, float]:
        """Items and seconds of a full batch; 0 s until a batch has been measured."""
        full = self._full.get(length)
        if full is None:
            most = self.most_of(length)
            full = self._full[length] = most, self.expected_s(most, length)
        return full

    def longest_s(self) -> float:
        """Seconds of a full batch of the longest measured items."""
        return self.full(self._curves.lengths[-1] if self._curves.lengths else 0)[1]

    def limit(self, largest: int) -> None:
        """Change the maximum number of items in one batch."""
        if largest != self.largest:
            self.largest = largest
            self._changed()

    def item_s(self, length: int) -> float:
        """The least seconds per item of this length, over all batch sizes."""
        return min(seconds / items for items, seconds in self._by_size(length))

    def took(
        self,
        items: int,
        compute_s: float,
        overhead_s: float | None = None,
        length: int = 0,
        *,
        began: float = math.inf,
        ended: float = -math.inf,
    ) -> None:
        """Learn from a batch that has ended.

        What stalls the process, or the machine, stalls the batches of all replicas at once. That is
        one outlier, not one for each: of outliers that overlap in time only the first counts.

        Args:
            items: number of its items.
            compute_s: seconds in the model.
            overhead_s: further seconds of waiting for its thread and for the event loop; None if
                unknown.
            length: length of the items.
            began: when it began; by default, after all others.
            ended: when it ended.
        """
        if not self._curves.lengths:  # no measurements: extrapolate from this batch
            self._curves = CostCurves({length: {items: compute_s}})
            self._guessed = True
            self._changed()
            return
        expected_s = self.compute_s(items, length)
        drift, around_s = self._drift.value, self._overhead.value
        whole_s = expected_s + around_s
        newest, most_s = drift * compute_s / expected_s, around_s + (OUTLIER - 1) * whole_s
        is_outlier = not drift / OUTLIER <= newest <= drift * OUTLIER
        if is_outlier or (overhead_s is not None and overhead_s > most_s):
            if began < self._outlier_ended:
                return
            self._outlier_ended = ended
        off_s = compute_s - expected_s
        self._drift.add(newest, drift / OUTLIER, drift * OUTLIER)
        self._drift.value = max(LEAST_S, self._drift.value)
        if overhead_s is not None:
            off_s += overhead_s - around_s
            self._overhead.add(overhead_s, 0.0, most_s)
        self._batches += 1
        weight = min(2 * WEIGHT, max(SCATTER_WEIGHT, 1 / self._batches))
        off = min(abs(off_s) / whole_s, OUTLIER - 1)
        self.deviation += weight * (off - self.deviation)
        self._changed()

    def batch_size(self, allowed_s: float, length: int = 0) -> int:
        """Return the largest batch to form for requests whose total time is `allowed_s`.

        It is a full batch, unless that takes an eighth of the time allowed or more. Then the
        candidates are sizes that take at most half of that time, because a request may have to wait
        for a running batch, or hardly longer than one item, where overhead dominates. The size with
        the best throughput wins, reduced by a share (HASTE) for the time that a batch takes.
        """
        most, full_s = self.full(length)
        if full_s * NO_PRESSURE <= max(0.0, allowed_s):
            return most
        seconds = self._by_size(length)
        longest_s = max(allowed_s / 2, HARDLY_LONGER * seconds[0][1])
        best, best_worth = 1, 0.0
        for size, takes_s in seconds:
            if takes_s > longest_s:
                break
            share = min(1.0, takes_s / allowed_s) if allowed_s > 0 else 1.0
            worth = size / takes_s * (1 - HASTE * share)
            if worth > best_worth:
                best, best_worth = size, worth
        return best

    def ahead(self, size: int, length: int = 0) -> Ahead:
        """When to prepare a batch of at most `size` items while the device runs another."""
        seconds = [each for each in self._by_size(length) if each[0] <= size and each[1] > 0]
        best = max((items / takes_s for items, takes_s in seconds), default=0.0)
        efficient = (n for n, takes_s in seconds if n / takes_s >= EFFICIENT * best)
        return Ahead(next(efficient, size), 2 * self._prepared_s + TURN_S)

    def prepared(self, seconds: float) -> None:
        """Learn how long it took to copy a batch to the device."""
        weight = WEIGHT if self._prepared_s else 1.0
        self._prepared_s += weight * (seconds - self._prepared_s)

    def out_of_memory(self, items: int, now: float, length: int = 0) -> None:
        """Limit batches to the next smaller bucket for a while, because `items` did not fit."""
        self._fits = min(self._fits, (1 << max(0, (items - 1).bit_length() - 1)) * max(1, length))
        whole = self.largest * max(1, length)
        self._whole = whole if self._whole == math.inf else max(self._whole, whole)
        self._grow_at = now + GROW_AFTER_S
        self.is_limited = True
        self._changed()

    def turn(self, now: float) -> None:
        """Allow larger batches again after a while: other processes may have freed memory."""
        if self.is_limited and now >= self._grow_at:
            self._fits *= 2
            if self._fits >= self._whole:
                self._fits = self._whole = math.inf
                self.is_limited = False
            self._grow_at = now + GROW_AFTER_S
            self._changed()

    def _by_size(self, length: int) -> list[tuple[int, float]]:
        """Powers of two below the largest size, then the largest size, with their seconds."""
        table = self._tables.get(length)
        if table is None:
            most = self.most_of(length)
            sizes = [1 << power for power in range((most - 1).bit_length())] + [most]
            table = [(size, self.expected_s(size, length)) for size in sizes]
            self._tables[length] = table
        return table

    def _changed(self) -> None:
        self._tables.clear()
        self._full.clear()
