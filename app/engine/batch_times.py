"""How long a batch takes on one replica, by its size: measured first, corrected by every batch."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping

from app.engine.in_a_row import NO_ACCIDENT, InARow
from app.engine.size_choice import SizeChoice
from app.engine.size_times import LEAST_S, WEIGHT, SizeTimes, interpolated

SCATTER_WEIGHT = 0.05  # of the newest batch in the deviation: less than one accident tells of it
MOST = 5.0  # times what was expected: more of one batch is an accident, and counts as so much
NO_PRESSURE = 8  # full batches that fit into the time allowed: smaller ones gain nothing then


class BatchTimes:
    """Seconds of one batch by its number of items: of the model, and of everything around it.

    Of one model on one replica: devices differ, also where they have one name.

    What is around it, such as the event loop's turns, is taken to be the same for every size. The
    model's is known at the powers of two, and interpolated between them.

    Args:
        most: items in one batch at most.
        measured: items -> seconds, as far as it was measured before; empty: nothing is known.

    Attributes:
        full_s: of a batch of `most` items; 0 as long as nothing is known.
    """

    def __init__(self, most: int, measured: Mapping[int, float]) -> None:
        self.most = most
        self._items = sorted(measured)
        self._means = [max(LEAST_S, measured[items]) for items in self._items]
        self._sizes = [SizeTimes(mean_s, mean_s) for mean_s in self._means]
        self._choice = SizeChoice(most, self._items, self._sizes)
        self._batches = 0
        self._overhead_s = 0.0
        self._deviation = 0.0  # of what batches took from what was expected, as a share of that
        self._surprises = InARow()  # times what was expected
        self._lately: deque[int] = deque(maxlen=NO_ACCIDENT)  # sizes; the last are of that row
        self._overheads = InARow()  # seconds: each longer than one is believed
        self._all_at = -1  # the number of batches when every size was found to be wrong
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
        return interpolated(self._items, self._means, items)

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
        size = min(1 << (items - 1).bit_length(), max(self.most, items))
        if self._items and self._items[0] <= size <= self._items[-1]:
            self._follow(items, size, compute_s, overhead_s, pressed)
        else:
            self._learn(size, max(LEAST_S, compute_s * size / items))
        self._means = [each.mean_s for each in self._sizes]
        self._choice.turn(self._batches)
        self.full_s = self.expected_s(self.most)

    def efficient(self, allowed_s: float) -> int:
        """How many items a batch should have at most whose requests are allowed so much time.

        As many as it may, unless a full batch takes an eighth of that and more: see `SizeChoice`.
        """
        pressed_s = max(0.0, allowed_s / NO_PRESSURE)
        if 2 * self.full_s <= pressed_s or self._choice.seconds(self.most) <= pressed_s:
            return self.most
        return self._choice.efficient(allowed_s)

    def worthwhile(self, most: int) -> int:
        """The smallest batch that is nearly as efficient as the best of at most so many items."""
        return self._choice.worthwhile(most)

    def _follow(
        self, items: int, size: int, compute_s: float, overhead_s: float | None, pressed: bool
    ) -> None:
        """Correct what was expected; `size` is the power of two, for the rest see `took`."""
        expected_s = self.compute_s(items)
        whole_s = expected_s + self._overhead_s
        steady_s = self._choice.steady_s(items)
        ratio = compute_s / expected_s
        at = bisect_left(self._items, items)
        known = range(at if self._items[at] == items or at == 0 else at - 1, at + 1)
        off = self._believed(ratio, size, known) - 1
        for each in known:
            self._sizes[each].follow(off, self._batches)
        if self._all_at != self._batches:  # else they were compared by what was wrong
            self._choice.took(items, known, compute_s, steady_s, expected_s * (1 + off))
        off_s = off * expected_s
        if overhead_s is not None:
            off_s += self._believe_overhead(overhead_s, (MOST - 1) * whole_s)
            self._choice.has_around(self._overhead_s)
        weight = min(WEIGHT, max(SCATTER_WEIGHT, 1 / self._batches))
        self._deviation += weight * (abs(off_s) / whole_s - self._deviation)
        for each in known:
            self._sizes[each].was_run(self._batches, compute_s, ratio)
        if pressed:
            took_s = compute_s + (overhead_s or 0.0)
            for index, other in enumerate(self._sizes):
                if index not in known:
                    other.was_not_run(took_s, self._choice.common, larger=index > at)

    def _believed(self, ratio: float, size: int, known: range) -> float:
        """What to make of a batch that took so many times what was expected.

        If that was wrong by much, and not of one size alone, it was wrong of all: one size may have
        been measured badly, or be special.

        Args:
            ratio: so many.
            size: of it, rounded up to a power of two.
            known: the sizes that it was expected by.
        """
        self._lately.append(size)
        if 1 / MOST <= ratio <= MOST:
            self._surprises.end()
            return ratio
        factor = self._surprises.add(ratio, too_long=ratio > 1)
        if factor is None:
            return min(ratio, MOST)
        one_size = len(set(self._lately)) == 1
        for each, of_size in enumerate(self._sizes):
            # Who was not run since all were found to be wrong was only ever thought to be so.
            if not one_size or each in known or of_size.ran <= self._all_at:
                of_size.scale(factor)
        if not one_size:
            self._all_at = self._batches
            self._choice.all_changed(factor)
        return 1.0

    def _believe_overhead(self, seconds: float, most_s: float) -> float:
        """Take it to be so long, or not quite; returns by how much it was off.

        Args:
            seconds: of the newest batch.
            most_s: that one batch may be believed to be longer than was expected.
        """
        off_s = seconds - self._overhead_s
        if off_s <= most_s:
            self._overheads.end()
        else:
            believed_s = self._overheads.add(seconds, too_long=True)
            if believed_s is not None:
                self._overhead_s = self._choice.overhead_s = believed_s
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
