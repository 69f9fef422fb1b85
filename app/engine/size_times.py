"""What is known of batches of one size."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

WEIGHT = 0.2  # of the newest batch
STEADY_WEIGHT = 0.02  # the same where sizes are compared: one that was held up shall not matter
TRIAL_WEIGHT = 0.5  # at most, of the first batch after many of other sizes
LEAST_S = 1e-9  # no batch takes no time at all
RECENT = 50  # batches: a size that has not been run for longer knows little of how things are
# Who is thought to be slow is not run, and would never be found out to be quick again. After so
# many times what a size is believed to take, half of that is believed, down to what the sizes that
# are run say; whenever that was wrong it takes twice as long to the next time.
PATIENCE = 20.0
MOST_PATIENCE = 64 * PATIENCE
SLOW = 1.1  # times as much slower as the sizes that are run: less is no more than scatter
MUCH_LONGER = 1.5  # several such batches in a row are no scatter


class SizeTimes:
    """Seconds that the model takes for a batch of one size.

    Args:
        mean_s: of the model.
        base_s: that at first.
        ran: see below.

    Attributes:
        mean_s: of the newest batches: what the next one is expected to take.
        steady_s: of some fifty batches, or mostly of the newest one after as many of other sizes:
            what sizes are compared by.
        base_s: what it took at first.
        ran: the number of all batches when one of it was the last; 0: never.
        last_s: what that one took.
        idle_s: seconds of other sizes, while more waited, since it was run or forgiven.
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
        """Times what it took at first, by what sizes are compared by."""
        return self.steady_s / self.base_s

    def is_recent(self, batches: int) -> bool:
        """Whether one of it was among the newest of so many batches."""
        return self.ran > 0 and batches - self.ran <= RECENT

    def scale(self, factor: float) -> None:
        """Believe it to take so many times as long, from now on."""
        self.mean_s = max(LEAST_S, self.mean_s * factor)
        self.steady_s = max(LEAST_S, self.steady_s * factor)

    def follow(self, off: float, batches: int) -> None:
        """The newest batch, with that number, took this share more or less than was expected."""
        took_s = self.mean_s * (1 + off)
        self.mean_s = max(LEAST_S, self.mean_s + WEIGHT * (took_s - self.mean_s))
        gap = max(1, batches - self.ran)  # as if each of them had faded what was known by a little
        weight = min(TRIAL_WEIGHT, 1 - (1 - STEADY_WEIGHT) ** gap)
        self.steady_s = max(LEAST_S, self.steady_s + weight * (took_s - self.steady_s))

    def was_run(self, batches: int, seconds: float, ratio: float) -> None:
        """The newest batch was of it, and took so long, and so many times what was expected."""
        if ratio <= SLOW:
            self.patience = PATIENCE
        elif self.forgiven:
            self.patience = min(MOST_PATIENCE, 2 * self.patience)
        self.ran, self.last_s, self.idle_s, self.forgiven = batches, seconds, 0.0, False

    def was_not_run(self, seconds: float, slower: float, *, larger: bool) -> None:
        """Another one has taken so long, although more waited.

        Args:
            seconds: that it took.
            slower: times what they took at first, that those take which are run.
            larger: than that one. Smaller ones are run whenever little waits: what is expected of
                them is right.
        """
        self.idle_s += seconds
        least_s = max(LEAST_S, self.base_s * slower)
        is_slow = self.steady_s > SLOW * least_s
        if is_slow and self.idle_s >= self.patience * max(self.steady_s, self.last_s):
            self.steady_s = max(least_s, self.steady_s / 2)
            if larger and self.mean_s > MUCH_LONGER * least_s:
                self.mean_s = max(least_s, self.mean_s / 2)
            self.idle_s = 0.0
            self.forgiven = True


def interpolated(known: Sequence[int], seconds: Sequence[float], items: int) -> float:
    """Seconds of a batch of so many items, where those of some sizes are known.

    Between them they are taken to grow evenly, beyond the largest in proportion, and below the
    smallest not to shrink: rather too long than too short.

    Args:
        known: those sizes, ascending; without any it is 0.
        seconds: of each.
        items: so many.
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
