"""Detects when larger batches gain little, so that a slow model is not warmed at such sizes."""

from __future__ import annotations

from collections.abc import Mapping

SLOW_S = 0.1  # faster forwards are cheap to warm at every size
# Of the time per item at the size before: a batch in this range gains little. If it takes even
# longer, other work has delayed it.
LINEAR = (0.75, 1.1)
LEAST_GAIN = 0.05  # share of the time per item that a larger batch must save to be worth running
IN_A_ROW = 2  # sizes without a gain, because other work on the machine may delay one


class Growth:
    """Follows the forwards of one model at ascending batch sizes.

    Once a forward is slow and two larger sizes in a row save almost no time per item, the model is
    compute-bound: a larger batch would take longer without a higher throughput.
    """

    def __init__(self) -> None:
        self._item_s = float("inf")  # the least so far
        self._last_item_s = float("inf")
        self._is_linear = False
        self._without_gain = 0

    def goes_on(self, size: int, seconds: float) -> bool:
        """Whether to try a larger batch after one of `size` items that took `seconds`."""
        item_s = seconds / size
        gains = item_s < (1 - LEAST_GAIN) * self._item_s
        self._item_s = min(item_s, self._item_s)
        self._is_linear = LINEAR[0] < item_s / self._last_item_s < LINEAR[1]
        self._last_item_s = item_s
        self._without_gain = 0 if gains or seconds < SLOW_S else self._without_gain + 1
        return self._without_gain < IN_A_ROW

    def expected_s(self, size: int) -> float | None:
        """The seconds of a larger batch; None if it must run, because it is quick or may gain."""
        seconds = self._last_item_s * size
        return seconds if self._is_linear and seconds >= SLOW_S else None


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

    def expected_s(self, size: int) -> dict[int, float]:
        """The seconds by length of batches of `size` that need not run; see `Growth.expected_s`."""
        expected_s = {length: each.expected_s(size) for length, each in self._growths.items()}
        return {
            length: seconds
            for length, seconds in expected_s.items()
            if seconds is not None and length not in self.full_lengths
        }

    def record(self, size: int, seconds: Mapping[int, float]) -> bool:
        """Record the seconds of batches of `size` by length; returns whether any length goes on."""
        if seconds:
            self.largest = size
        for length, took_s in seconds.items():
            if not self._growths.setdefault(length, Growth()).goes_on(size, took_s):
                self.full_lengths.add(length)
        return len(self.full_lengths) < len(self._growths)
