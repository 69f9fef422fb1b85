"""How long a batch takes, by its size: measured before it serves, and corrected by every batch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

WEIGHT = 0.2  # of the newest batch
MOST = 5.0  # times what was expected: more of one batch is an accident, and counts as so much
# Such batches in a row, all longer or all shorter: what was expected was wrong, by what the mildest
# of them says. The last of three accidents may have been a hundred times too long. It was wrong at
# every size if they were of two sizes: one size alone may have been measured badly, or be special.
NO_ACCIDENT = 3
NO_PRESSURE = (
    8  # full batches that fit into the time allowed: then nothing is gained by smaller ones
)
LEAST_S = 1e-9  # no batch takes no time at all
EFFICIENT = 0.9  # of the best throughput: a smaller batch that reaches it is preferred


class BatchTimes:
    """Seconds of one batch, waiting for its thread included, by its number of items.

    Known at the powers of two; between them it is taken to grow evenly, beyond the largest known in
    proportion, and below the smallest not to shrink: rather too long than too short.

    Args:
        most: items in one batch at most.
        measured: items -> seconds, as far as it was measured before; empty: nothing is known.

    Attributes:
        full_s: of a batch of `most` items; 0 as long as nothing is known.
    """

    def __init__(self, most: int, measured: Mapping[int, float]) -> None:
        self.most = most
        self._sizes = sorted(measured)
        self._means = [max(LEAST_S, measured[size]) for size in self._sizes]
        self._surprises: list[tuple[float, int]] = []  # times what was expected, and the size
        self._deviation = 0.0  # of what batches took from what was expected, as a share of that
        self.full_s = self.expected_s(most)

    @property
    def deviation(self) -> float:
        """How far batches are from what was expected, as a share of it: a running mean."""
        return self._deviation

    def expected_s(self, items: int) -> float:
        """Of a batch of so many items; 0 as long as nothing is known."""
        sizes, means = self._sizes, self._means
        if not sizes:
            return 0.0
        at = bisect_left(sizes, items)
        if at == len(sizes):
            return means[-1] * items / sizes[-1]
        if at == 0 or sizes[at] == items:
            return means[at]
        low, high = sizes[at - 1], sizes[at]
        return means[at - 1] + (means[at] - means[at - 1]) * (items - low) / (high - low)

    def took(self, items: int, seconds: float) -> None:
        """A batch of so many items took so long."""
        size = min(1 << (items - 1).bit_length(), max(self.most, items))
        expected_s = self.expected_s(items)
        if expected_s <= 0 or not self._sizes[0] <= size <= self._sizes[-1]:
            self._learn(size, max(LEAST_S, seconds * size / items))
        else:
            at = bisect_left(self._sizes, items)
            known = range(at if self._sizes[at] == items or at == 0 else at - 1, at + 1)
            off = self._believed(seconds / expected_s, size, known) - 1
            self._scale(known, 1 + WEIGHT * off)
            self._deviation += WEIGHT * (abs(off) - self._deviation)
        self.full_s = self.expected_s(self.most)

    def efficient(self, allowed_s: float) -> int:
        """How many items a batch should have at most whose requests are allowed so much time.

        As many as it may, unless a full batch takes an eighth of that and more. Then only sizes
        that take no more than half of it are considered, for a request may find another batch
        running; and of these the smallest that is nearly as efficient as the best.
        """
        if self.full_s * NO_PRESSURE <= max(0.0, allowed_s):
            return self.most
        sizes = [1 << power for power in range((self.most - 1).bit_length())] + [self.most]
        fitting = [size for size in sizes if self.expected_s(size) <= allowed_s / 2] or [1]
        best = max(size / self.expected_s(size) for size in fitting)
        return next(size for size in fitting if size / self.expected_s(size) >= EFFICIENT * best)

    def _believed(self, ratio: float, size: int, known: range) -> float:
        """What to make of a batch that took so many times what was expected.

        Args:
            ratio: so many.
            size: of the batch, rounded up to a power of two.
            known: the means that it was expected by.
        """
        if 1 / MOST <= ratio <= MOST:
            self._surprises.clear()
            return ratio
        longer = ratio > 1
        if self._surprises and (self._surprises[-1][0] > 1) is not longer:
            self._surprises.clear()
        self._surprises.append((ratio, size))
        if len(self._surprises) < NO_ACCIDENT:
            return min(ratio, MOST)
        ratios = [each for each, _ in self._surprises]
        one_size = all(each == size for _, each in self._surprises)
        self._surprises.clear()
        self._scale(
            known if one_size else range(len(self._means)), min(ratios) if longer else max(ratios)
        )
        return 1.0

    def _scale(self, which: range, factor: float) -> None:
        for each in which:
            self._means[each] = max(LEAST_S, self._means[each] * factor)

    def _learn(self, size: int, seconds: float) -> None:
        at = bisect_left(self._sizes, size)
        self._sizes.insert(at, size)
        self._means.insert(at, seconds)
