"""Which size of batch is best? Sizes are compared by what lasts, not by the newest batches."""

from __future__ import annotations

from collections.abc import Sequence

from app.engine.in_a_row import InARow
from app.engine.size_times import (
    LEAST_S,
    MUCH_LONGER,
    STEADY_WEIGHT,
    SizeTimes,
    interpolated,
)

EFFICIENT = 0.9  # of the best throughput: a batch that reaches it is worth preparing
HASTE = 0.5  # a batch that takes half of the time allowed must be worth a third more than none
# Where not even a batch of one leaves half of the time: larger ones that take hardly longer.
HARDLY_LONGER = 1.25
# What slows down the sizes that are run, such as an event loop that refuses a lot, would slow down
# those that are not as well. By so much at most: a size may have become slow by itself.
COMMON = 1.25


class SizeChoice:
    """Compares sizes of batches, of one model on one replica.

    They belong to a `BatchTimes`. At the end of a batch it asks for `steady_s`, lets the sizes
    follow the batch, and then calls `took` (`all_changed` instead, where they were all wrong),
    `has_around` and, last, `turn`.

    Args:
        most: items in one batch at most.
        items: the sizes that are known, ascending; their owner may insert more.
        sizes: what is known of each.

    Attributes:
        common: times what the sizes that are run took at first: a running mean.
        overhead_s: what is around a batch of any size, by many batches.
    """

    def __init__(self, most: int, items: Sequence[int], sizes: Sequence[SizeTimes]) -> None:
        self.common = 1.0
        self.overhead_s = 0.0
        self._most = most
        self._items = items
        self._sizes = sizes
        self._batches = 0
        self._compared: list[float] = []  # see `seconds`; empty after every batch
        self._unlike = InARow()  # times what sizes are compared by

    def efficient(self, allowed_s: float) -> int:
        """How many items a batch should have at most whose requests are allowed so much time.

        Only sizes that take no more than half of it are considered, for a request may find another
        batch running; or hardly longer than one item, where so much is around every batch. Of these
        it is the one with the best throughput, of which HASTE is taken off for the share of the
        time allowed that it takes: for a gain of a few hundredths nobody shall wait for larger
        batches.
        """
        seconds = {size: self.seconds(size) for size in _sizes(self._most)}
        if seconds[1] <= 0:
            return self._most
        most_s = max(allowed_s / 2, HARDLY_LONGER * seconds[1])

        def worth(size: int) -> float:
            share = min(1.0, seconds[size] / allowed_s) if allowed_s > 0 else 1.0
            return size / seconds[size] * (1 - HASTE * share)

        return max((size for size in seconds if seconds[size] <= most_s), key=worth)

    def worthwhile(self, most: int) -> int:
        """The smallest batch that is nearly as efficient as the best of at most so many items."""
        seconds = {size: self.seconds(size) for size in _sizes(most)}
        if seconds[1] <= 0:
            return most
        best = max(size / seconds[size] for size in seconds)
        return next(size for size in seconds if size / seconds[size] >= EFFICIENT * best)

    def seconds(self, items: int) -> float:
        """Of a batch of so many items, to compare sizes by; 0 as long as nothing is known.

        By many batches. What was not run lately is taken to be as much slower than at first as
        what was, within bounds: see COMMON.
        """
        if not self._compared:
            for size in self._sizes:
                times = self.common / size.steadily_slower
                is_recent = size.is_recent(self._batches)
                now = 1.0 if is_recent else min(COMMON, max(1.0, times))
                self._compared.append(size.steady_s * now)
        compute_s = interpolated(self._items, self._compared, items)
        return compute_s + self.overhead_s if compute_s > 0 else 0.0

    def steady_s(self, items: int) -> float:
        """Of a batch of so many items in the model: what the newest one is held against."""
        return interpolated(self._items, [size.steady_s for size in self._sizes], items)

    def took(
        self, items: int, known: range, compute_s: float, compared_s: float, believed_s: float
    ) -> None:
        """A batch has ended.

        Args:
            items: of it.
            known: the sizes that it was expected by.
            compute_s: that the model took.
            compared_s: what `steady_s` said before.
            believed_s: that it took, or what is believed of it where that may be an accident.
        """
        changed = self._changed(compute_s / compared_s)
        if changed is None:  # as steadily as the sizes, or one would be quicker beside the other
            base_s = interpolated(self._items, [size.base_s for size in self._sizes], items)
            self.common += STEADY_WEIGHT * (believed_s / base_s - self.common)
            return
        times = changed * compared_s / self.steady_s(items)  # which has followed it a little
        for each in known:
            size = self._sizes[each]
            size.steady_s = max(LEAST_S, size.steady_s * times)
        self.common = self._sizes[known[-1]].steadily_slower

    def all_changed(self, factor: float) -> None:
        """All sizes were found to take so many times what was believed."""
        self.common *= factor
        self._unlike.end()

    def has_around(self, overhead_s: float) -> None:
        """So much is around the newest batches, whatever their size."""
        self.overhead_s += STEADY_WEIGHT * (overhead_s - self.overhead_s)
        self.overhead_s = min(self.overhead_s, MUCH_LONGER * overhead_s)

    def turn(self, batches: int) -> None:
        """So many have ended, and what is known of the sizes has followed the newest."""
        self._batches = batches
        self._compared = []

    def _changed(self, times: float) -> float | None:
        """Times what they are compared by, that batches take now; None: there is no change.

        Args:
            times: of the newest.
        """
        if 1 / MUCH_LONGER <= times <= MUCH_LONGER:
            self._unlike.end()
            return None
        return self._unlike.add(times, too_long=times > 1)


def _sizes(most: int) -> list[int]:
    """The powers of two below so many items, and that."""
    return [1 << power for power in range((most - 1).bit_length())] + [most]
