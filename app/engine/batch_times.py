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
NO_PRESSURE = 8  # full batches that fit into the time allowed: smaller ones gain nothing then
LEAST_S = 1e-9  # no batch takes no time at all
EFFICIENT = 0.9  # of the best throughput: a smaller batch that reaches it is preferred
# Batches of other sizes, after which it is forgotten that a size was slow: who is thought to be
# slow is not run, and would never be found out to be quick again.
FORGET_AFTER = 256


class BatchTimes:
    """Seconds of one batch by its number of items: of the model, and of everything around it.

    What is around it, such as the event loop's turns, is taken to be the same for every size. The
    model's is known at the powers of two; between them it is taken to grow evenly, beyond the
    largest known in proportion, and below the smallest not to shrink: rather too long than too
    short.

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
        self._bases = list(self._means)  # as they were at first, to compare sizes by
        self._ran = [0] * len(self._sizes)  # the number of batches when one of them was the last
        self._batches = 0
        self._overhead_s = 0.0
        self._overheads: list[float] = []  # in a row, each longer than one is believed
        self._surprises: list[tuple[float, int]] = []  # times what was expected, and the size
        self._deviation = 0.0  # of what batches took from what was expected, as a share of that
        self.full_s = self.expected_s(most)

    @property
    def deviation(self) -> float:
        """How far batches are from what was expected, as a share of it: a running mean."""
        return self._deviation

    def expected_s(self, items: int) -> float:
        """Of a batch of so many items; 0 as long as nothing is known."""
        compute_s = self._compute_s(items)
        return compute_s + self._overhead_s if compute_s > 0 else 0.0

    def _compute_s(self, items: int) -> float:
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

    def took(self, items: int, compute_s: float, overhead_s: float | None = None) -> None:
        """A batch has ended.

        Args:
            items: of it.
            compute_s: that the model took.
            overhead_s: that it took beside: waiting for its thread, and for the event loop at its
                end; None: it is not known.
        """
        self._batches += 1
        size = min(1 << (items - 1).bit_length(), max(self.most, items))
        expected_s = self._compute_s(items)
        if expected_s <= 0 or not self._sizes[0] <= size <= self._sizes[-1]:
            self._learn(size, max(LEAST_S, compute_s * size / items))
        else:
            at = bisect_left(self._sizes, items)
            known = range(at if self._sizes[at] == items or at == 0 else at - 1, at + 1)
            off = self._believed(compute_s / expected_s, size, known) - 1
            self._scale(known, 1 + WEIGHT * off)
            off_s = off * expected_s
            whole_s = expected_s + self._overhead_s
            if overhead_s is not None:
                off_s += self._believe_overhead(overhead_s, (MOST - 1) * whole_s)
            self._deviation += WEIGHT * (abs(off_s) / whole_s - self._deviation)
            self._forget(at, known)
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

    def _believe_overhead(self, seconds: float, most_s: float) -> float:
        """Take it to be so long, or not quite; returns by how much it was off.

        Args:
            seconds: of the newest batch.
            most_s: that one batch may be believed to be longer than was expected.
        """
        off_s = seconds - self._overhead_s
        if off_s <= most_s:
            self._overheads.clear()
        else:
            self._overheads.append(seconds)
            if len(self._overheads) == NO_ACCIDENT:
                self._overhead_s = min(self._overheads)
                self._overheads.clear()
                return 0.0
            off_s = most_s
        self._overhead_s += WEIGHT * off_s
        return off_s

    def _forget(self, at: int, known: range) -> None:
        """Sizes that were not run for long are as slow as the one that was run just now, no slower.

        Args:
            at: which that was.
            known: the means that it was expected by.
        """
        for each in known:
            self._ran[each] = self._batches
        if self._batches % FORGET_AFTER:
            return
        slower = self._means[at] / self._bases[at]  # than at first
        for each, ran in enumerate(self._ran):
            if self._batches - ran >= FORGET_AFTER:
                self._means[each] = min(self._means[each], self._bases[each] * slower)

    def _scale(self, which: range, factor: float) -> None:
        for each in which:
            self._means[each] = max(LEAST_S, self._means[each] * factor)

    def _learn(self, size: int, seconds: float) -> None:
        at = bisect_left(self._sizes, size)
        near = min(at, len(self._sizes) - 1)
        slower = self._means[near] / self._bases[near] if self._sizes else 1.0
        self._sizes.insert(at, size)
        self._means.insert(at, seconds)
        self._bases.insert(at, seconds / slower)
        self._ran.insert(at, self._batches)
