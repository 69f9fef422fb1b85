"""How long a batch takes on one replica, by its size: measured first, corrected by every batch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from app.engine.size_times import LEAST_S, MUCH_LONGER, STEADY_WEIGHT, WEIGHT, SizeTimes

SCATTER_WEIGHT = 0.05  # of the newest batch in the deviation: less than one accident tells of it
MOST = 5.0  # times what was expected: more of one batch is an accident, and counts as so much
# Such batches in a row, all longer or all shorter: what was expected was wrong, by what the mildest
# of them says. The last of three accidents may have been a hundred times too long. It was wrong at
# every size if they were of two sizes: one size alone may have been measured badly, or be special.
NO_ACCIDENT = 3
NO_PRESSURE = 8  # full batches that fit into the time allowed: smaller ones gain nothing then
EFFICIENT = 0.9  # of the best throughput: a batch that reaches it is worth preparing
HASTE = 0.5  # a batch that takes half of the time allowed must be worth a third more than none
# Where not even a batch of one leaves half of the time: larger ones that take hardly longer.
HARDLY_LONGER = 1.25
# What slows down the sizes that are run, such as an event loop that refuses a lot, would slow down
# those that are not as well. By so much at most: a size may have become slow by itself.
COMMON = 1.25


class BatchTimes:
    """Seconds of one batch by its number of items: of the model, and of everything around it.

    Of one model on one replica: devices differ, also where they have one name.

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
        self._items = sorted(measured)
        means = [max(LEAST_S, measured[items]) for items in self._items]
        self._sizes = [SizeTimes(mean_s, mean_s) for mean_s in means]
        self._batches = 0
        self._common = 1.0  # times what the sizes that are run took at first: a running mean
        self._unlike: list[float] = []  # in a row: times what sizes are compared by
        self._compared: list[float] = []  # see `_compared_s`; empty after every batch
        self._all_at = -1  # the number of batches when every size was found to be wrong
        self._surprises: list[tuple[float, int]] = []  # times what was expected, and the size
        self._overhead_s = self._steady_overhead_s = 0.0
        self._overheads: list[float] = []  # in a row, each longer than one is believed
        self._deviation = 0.0  # of what batches took from what was expected, as a share of that
        self.full_s = self.expected_s(most)

    @property
    def deviation(self) -> float:
        """How far batches are from what was expected, as a share of it: a running mean."""
        return self._deviation

    def expected_s(self, items: int) -> float:
        """Of a batch of so many items; 0 as long as nothing is known."""
        compute_s = self.compute_s(items)
        return compute_s + self._overhead_s if compute_s > 0 else 0.0

    def compute_s(self, items: int) -> float:
        """Of that in the model; 0 as long as nothing is known."""
        return self._seconds(items, [size.mean_s for size in self._sizes])

    def took(
        self,
        items: int,
        compute_s: float,
        overhead_s: float | None = None,
        *,
        pressed: bool = True,
    ) -> None:
        """A batch has ended.

        Args:
            items: of it.
            compute_s: that the model took.
            overhead_s: that it took beside: waiting for its thread, and for the event loop at its
                end; None: it is not known.
            pressed: more waited, so that a batch of another size could have been run.
        """
        self._batches += 1
        self._compared = []
        size = min(1 << (items - 1).bit_length(), max(self.most, items))
        expected_s = self.compute_s(items)
        if expected_s <= 0 or not self._items[0] <= size <= self._items[-1]:
            self._learn(size, max(LEAST_S, compute_s * size / items))
            self.full_s = self.expected_s(self.most)
            return
        whole_s = expected_s + self._overhead_s
        at = bisect_left(self._items, items)
        known = range(at if self._items[at] == items or at == 0 else at - 1, at + 1)
        ratio = compute_s / expected_s
        steady_s = [each.steady_s for each in self._sizes]
        off = self._believed(ratio, size, known) - 1
        for each in known:
            self._sizes[each].follow(off, self._batches)
        self._compare(items, known, steady_s, compute_s, expected_s * (1 + off))
        off_s = off * expected_s
        if overhead_s is not None:
            off_s += self._believe_overhead(overhead_s, (MOST - 1) * whole_s)
            lately_s = self._overhead_s
            self._steady_overhead_s += STEADY_WEIGHT * (lately_s - self._steady_overhead_s)
            self._steady_overhead_s = min(self._steady_overhead_s, MUCH_LONGER * lately_s)
        weight = min(WEIGHT, max(SCATTER_WEIGHT, 1 / self._batches))
        self._deviation += weight * (abs(off_s) / whole_s - self._deviation)
        for each in known:
            self._sizes[each].was_run(self._batches, compute_s, ratio)
        if pressed:
            took_s = compute_s + (overhead_s or 0.0)
            for index, other in enumerate(self._sizes):
                if index not in known:
                    other.was_not_run(took_s, self._common, larger=index > at)
        self.full_s = self.expected_s(self.most)

    def efficient(self, allowed_s: float) -> int:
        """How many items a batch should have at most whose requests are allowed so much time.

        As many as it may, unless a full batch takes an eighth of that and more. Then only sizes
        that take no more than half of it are considered, for a request may find another batch
        running; or hardly longer than one item, where so much is around every batch. Of these it is
        the one with the best throughput, of which HASTE is taken off for the share of the time
        allowed that it takes: for a gain of a few hundredths nobody shall wait for larger batches.
        """
        pressed_s = allowed_s / NO_PRESSURE
        if 2 * self.full_s <= pressed_s or self._compared_s(self.most) <= max(0.0, pressed_s):
            return self.most
        seconds = {size: self._compared_s(size) for size in _sizes(self.most)}
        most_s = max(allowed_s / 2, HARDLY_LONGER * seconds[1])

        def worth(size: int) -> float:
            share = min(1.0, seconds[size] / allowed_s) if allowed_s > 0 else 1.0
            return size / seconds[size] * (1 - HASTE * share)

        return max((size for size in seconds if seconds[size] <= most_s), key=worth)

    def worthwhile(self, most: int) -> int:
        """The smallest batch that is nearly as efficient as the best of at most so many items."""
        seconds = {size: self._compared_s(size) for size in _sizes(most)}
        if seconds[1] <= 0:
            return most
        best = max(size / seconds[size] for size in seconds)
        return next(size for size in seconds if size / seconds[size] >= EFFICIENT * best)

    def _compared_s(self, items: int) -> float:
        """Of a batch of so many items, to compare sizes by; 0 as long as nothing is known.

        By many batches. What was not run lately is taken to be as much slower than at first as
        what was, within bounds: see COMMON.
        """
        if not self._compared:
            for size in self._sizes:
                times = self._common / size.steadily_slower
                is_recent = size.is_recent(self._batches)
                now = 1.0 if is_recent else min(COMMON, max(1.0, times))
                self._compared.append(size.steady_s * now)
        compute_s = self._seconds(items, self._compared)
        return compute_s + self._steady_overhead_s if compute_s > 0 else 0.0

    def _seconds(self, items: int, seconds: Sequence[float]) -> float:
        """By the seconds of the sizes that are known; 0 without any."""
        known = self._items
        if not known:
            return 0.0
        at = bisect_left(known, items)
        if at == len(known):
            return seconds[-1] * items / known[-1]
        if at == 0 or known[at] == items:
            return seconds[at]
        share = (items - known[at - 1]) / (known[at] - known[at - 1])
        return seconds[at - 1] + (seconds[at] - seconds[at - 1]) * share

    def _compare(
        self,
        items: int,
        known: range,
        steady_s: Sequence[float],
        compute_s: float,
        believed_s: float,
    ) -> None:
        """What the newest batch tells those who compare sizes.

        Args:
            items: of it.
            known: the sizes that it was expected by.
            steady_s: what all sizes were compared by before.
            compute_s: that it took.
            believed_s: that of this is believed.
        """
        changed = self._changed(compute_s / self._seconds(items, steady_s))
        if changed is None:  # as steadily as the sizes, or one would be quicker beside the other
            slower = believed_s / self._seconds(items, [each.base_s for each in self._sizes])
            self._common += STEADY_WEIGHT * (slower - self._common)
            return
        for each in known:
            self._sizes[each].steady_s = max(LEAST_S, steady_s[each] * changed)
        self._common = self._sizes[known[-1]].steadily_slower

    def _changed(self, unlike: float) -> float | None:
        """Times what sizes are compared by, that the newest ones take; None: there is no change.

        Args:
            unlike: times what it is compared by, that the newest batch took.
        """
        longer = unlike > 1
        if 1 / MUCH_LONGER <= unlike <= MUCH_LONGER:
            self._unlike.clear()
            return None
        if self._unlike and (self._unlike[-1] > 1) is not longer:
            self._unlike.clear()
        self._unlike.append(unlike)
        del self._unlike[:-NO_ACCIDENT]
        if len(self._unlike) < NO_ACCIDENT:
            return None
        return min(self._unlike) if longer else max(self._unlike)

    def _believed(self, ratio: float, size: int, known: range) -> float:
        """What to make of a batch that took so many times what was expected.

        Args:
            ratio: so many.
            size: of the batch, rounded up to a power of two.
            known: the sizes that it was expected by.
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
        factor = min(ratios) if longer else max(ratios)
        one_size = all(each == size for _, each in self._surprises)
        self._surprises.clear()
        for each, of_size in enumerate(self._sizes):
            # Who was not run since all were found to be wrong was only ever thought to be so.
            if not one_size or each in known or of_size.ran <= self._all_at:
                of_size.scale(factor)
        if not one_size:
            self._all_at = self._batches
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
                self._overhead_s = self._steady_overhead_s = min(self._overheads)
                self._overheads.clear()
                return 0.0
            off_s = most_s
        self._overhead_s += WEIGHT * off_s
        return off_s

    def _learn(self, size: int, seconds: float) -> None:
        at = bisect_left(self._items, size)
        near = min(at, len(self._items) - 1)
        slower = self._sizes[near].slower if self._sizes else 1.0
        self._items.insert(at, size)
        self._sizes.insert(at, SizeTimes(seconds, seconds / slower, self._batches))


def _sizes(most: int) -> list[int]:
    """The powers of two below so many items, and that."""
    return [1 << power for power in range((most - 1).bit_length())] + [most]
