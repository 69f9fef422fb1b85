"""Measured seconds of batches, and estimates between the measured sizes and lengths."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

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
