"""How long a batch takes on one replica, by its size: measured first, corrected by every batch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

WEIGHT = 0.2  # of the newest batch
# The same where sizes are compared, and for the scatter. One forward that was held up makes its
# size look bad beside those that were not run just then, and everything look uncertain.
STEADY_WEIGHT = 0.02
SCATTER_WEIGHT = 0.05
# What makes the sizes that are run a little slower, such as an event loop that is busy refusing,
# would make all others slower as well, and they know nothing of it: nobody changes to them for it.
COMMON = 1.25
MOST = 5.0  # times what was expected: more of one batch is an accident, and counts as so much
# Such batches in a row, all longer or all shorter: what was expected was wrong, by what the mildest
# of them says. The last of three accidents may have been a hundred times too long. It was wrong at
# every size if they were of two sizes: one size alone may have been measured badly, or be special.
NO_ACCIDENT = 3
NO_PRESSURE = 8  # full batches that fit into the time allowed: smaller ones gain nothing then
LEAST_S = 1e-9  # no batch takes no time at all
EFFICIENT = 0.9  # of the best throughput: a batch that reaches it is worth preparing
# Where not even a batch of one leaves half of the time: larger ones that take hardly longer.
HARDLY_LONGER = 1.25
# Who is thought to be slow is not run, and would never be found out to be quick again. After so
# many times what a size is believed to take, half of that is believed, down to what the sizes that
# are run say; whenever that was wrong it takes twice as long to the next time.
PATIENCE = 20.0
MOST_PATIENCE = 64 * PATIENCE
MUCH_LONGER = 1.5


class _Size:
    """What is known of batches of one size.

    Attributes:
        mean_s: of the model, lately.
        steady_s: the same over a longer time, to compare sizes by.
        base_s: that at first.
        ran: the number of batches when one of it was the last.
        last_s: of the model, the last time.
        idle_s: seconds of smaller sizes, while more waited, since it was run or forgiven.
        patience: times what it takes, until it is forgiven.
        forgiven: it was, and has not been run since.
    """

    __slots__ = ("base_s", "forgiven", "idle_s", "last_s", "mean_s", "patience", "ran", "steady_s")

    def __init__(self, mean_s: float, base_s: float, ran: int = 0) -> None:
        self.mean_s = self.steady_s = mean_s
        self.base_s = base_s
        self.ran = ran
        self.last_s = self.idle_s = 0.0
        self.patience = PATIENCE
        self.forgiven = False

    @property
    def slower(self) -> float:
        """Times what it took at first."""
        return self.mean_s / self.base_s

    @property
    def steadily_slower(self) -> float:
        """The same over a longer time."""
        return self.steady_s / self.base_s

    def scale(self, factor: float) -> None:
        """Believe it to take so many times as long, from now on."""
        self.mean_s = max(LEAST_S, self.mean_s * factor)
        self.steady_s = max(LEAST_S, self.steady_s * factor)

    def follow(self, off: float) -> None:
        """A batch took that share more, or less, than was expected."""
        took_s = self.mean_s * (1 + off)
        self.mean_s = max(LEAST_S, self.mean_s * (1 + WEIGHT * off))
        if self.forgiven:  # one trial decides
            self.steady_s = max(LEAST_S, took_s)
        else:
            self.steady_s += STEADY_WEIGHT * (self.mean_s - self.steady_s)

    def was_run(self, batches: int, seconds: float, ratio: float) -> None:
        """The newest batch was of it, and took so long, and so many times what was expected."""
        if ratio <= MUCH_LONGER:
            self.patience = PATIENCE
        elif self.forgiven:
            self.patience = min(MOST_PATIENCE, 2 * self.patience)
        self.ran, self.last_s, self.idle_s, self.forgiven = batches, seconds, 0.0, False

    def was_not_run(self, seconds: float, slower: float) -> None:
        """A smaller one has taken so long, and takes so many times what it took at first."""
        self.idle_s += seconds
        least_s = self.base_s * slower
        costs_s = max(self.mean_s, self.last_s)
        slow = self.mean_s > MUCH_LONGER * least_s  # less is no more than scatter
        if slow and self.idle_s >= self.patience * costs_s:
            self.mean_s = self.steady_s = max(LEAST_S, least_s, self.mean_s / 2)
            self.idle_s = 0.0
            self.forgiven = True


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
        self._sizes = [_Size(mean_s, mean_s) for mean_s in means]
        self._batches = 0
        self._lately_slower = 0.0  # steadily, the size that was run last
        self._compared: list[float] = []  # made when it is asked for; empty after every batch
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
            pressed: more waited, so that a larger batch could have been run.
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
        off = self._believed(ratio, size, known) - 1
        for each in known:
            self._sizes[each].follow(off)
        off_s = off * expected_s
        if overhead_s is not None:
            off_s += self._believe_overhead(overhead_s, (MOST - 1) * whole_s)
            lately_s = self._overhead_s
            self._steady_overhead_s += STEADY_WEIGHT * (lately_s - self._steady_overhead_s)
        self._deviation += SCATTER_WEIGHT * (abs(off_s) / whole_s - self._deviation)
        for each in known:
            self._sizes[each].was_run(self._batches, compute_s, ratio)
        self._lately_slower = self._sizes[at].steadily_slower
        if pressed:
            took_s, slower = compute_s + (overhead_s or 0.0), self._sizes[at].slower
            for larger in self._sizes[at + 1 :]:
                larger.was_not_run(took_s, slower)
        self.full_s = self.expected_s(self.most)

    def efficient(self, allowed_s: float) -> int:
        """How many items a batch should have at most whose requests are allowed so much time.

        As many as it may, unless a full batch takes an eighth of that and more. Then only sizes
        that take no more than half of it are considered, for a request may find another batch
        running; of these the one with the best throughput, times the share of the time allowed
        that is left after half of a batch, which is what is mostly left of the running one: where
        larger batches gain a few hundredths, nobody shall wait for them. Where none takes so
        little, because so much is around every batch, the best throughput of the sizes that take
        hardly longer than one item.
        """
        if self.full_s * NO_PRESSURE <= max(0.0, allowed_s):
            return self.most
        sizes = [1 << power for power in range((self.most - 1).bit_length())] + [self.most]
        seconds = {size: self._steady_s(size) for size in sizes}
        fitting = [size for size in sizes if seconds[size] <= allowed_s / 2]
        if fitting:
            return max(fitting, key=lambda size: size / seconds[size] - size / 2 / allowed_s)
        hardly_s = HARDLY_LONGER * seconds[1]
        fitting = [size for size in sizes if seconds[size] <= hardly_s]
        return max(fitting, key=lambda size: size / seconds[size])

    def worthwhile(self, most: int) -> int:
        """The smallest batch that is nearly as efficient as the best of at most so many items."""
        sizes = [1 << power for power in range((most - 1).bit_length())] + [most]
        seconds = [self._steady_s(size) for size in sizes]
        if seconds[0] <= 0:
            return most
        best = max(size / each for size, each in zip(sizes, seconds, strict=True))
        pairs = zip(sizes, seconds, strict=True)
        return next(size for size, each in pairs if size / each >= EFFICIENT * best)

    def _steady_s(self, items: int) -> float:
        """As `expected_s`, to compare sizes by: over a longer time, and as if all were run now."""
        if not self._compared:
            lately = self._lately_slower
            self._compared = [
                size.steady_s * min(COMMON, max(1.0, lately / size.steadily_slower))
                for size in self._sizes
            ]
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
        self._sizes.insert(at, _Size(seconds, seconds / slower, self._batches))
