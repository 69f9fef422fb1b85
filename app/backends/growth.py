"""Detects when larger batches gain nothing, so that a slow model is not warmed at such sizes."""

from __future__ import annotations

from collections.abc import Mapping

SLOW_S = 0.1  # faster forwards are cheap to warm at every size
LEAST_GAIN = 0.05  # share of the time per item that a larger batch must save to be worth running
IN_A_ROW = 2  # sizes without a gain, because other work on the machine may delay one


class Growth:
    """Follows the forwards of one model at ascending batch sizes.

    Once a forward is slow and two larger sizes in a row save almost no time per item, the model is
    compute-bound: a larger batch would take longer without a higher throughput.
    """

    def __init__(self) -> None:
        self._item_s = float("inf")  # the least so far
        self._without_gain = 0

    def goes_on(self, size: int, seconds: float) -> bool:
        """Whether to try a larger batch after one of `size` items that took `seconds`."""
        item_s = seconds / size
        gains = item_s < (1 - LEAST_GAIN) * self._item_s
        self._item_s = min(item_s, self._item_s)
        self._without_gain = 0 if gains or seconds < SLOW_S else self._without_gain + 1
        return self._without_gain < IN_A_ROW


class GrowthByLength:
    """Follows the growth of batches separately for each length.

    Attributes:
        full_lengths: the lengths for which no larger batch is worth running.
        largest: the largest batch run at any length; 1 before the first.
    """

    def __init__(self) -> None:
        self.full_lengths: set[int] = set()
        self.largest = 1
        self._growths: dict[int, Growth] = {}

    def record(self, size: int, seconds: Mapping[int, float]) -> bool:
        """Record the seconds of batches of `size` by length; returns whether any length goes on."""
        if seconds:
            self.largest = size
        for length, took_s in seconds.items():
            if not self._growths.setdefault(length, Growth()).goes_on(size, took_s):
                self.full_lengths.add(length)
        return len(self.full_lengths) < len(self._growths)
