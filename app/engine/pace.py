"""How one replica serves one model: how long its batches take, and how large they can be."""

from __future__ import annotations

from app.engine.batch_times import BatchTimes
from app.engine.policy import Ahead

WEIGHT = 0.2  # of the newest batch
TURN_S = 0.0005  # that the event loop and the thread may take to turn to a batch
GROW_AFTER_S = 60.0  # a batch of twice the size is tried again: a neighbour may have had the memory


class Pace:
    """Owned by the event loop.

    Args:
        times: how long its batches take.
        now: the moment.

    Attributes:
        ran_at: when it was given a batch last, or since when it could have been.
        left_at: when it was left idle last although something waited.
        most: items of a batch at most; less than `times` knows of where more did not fit.
    """

    __slots__ = ("_grow_at", "_prepared_s", "left_at", "most", "ran_at", "times")

    def __init__(self, times: BatchTimes, now: float) -> None:
        self.times = times
        self.ran_at = self.left_at = now
        self.most = times.most
        self._grow_at = 0.0
        self._prepared_s = 0.0

    @property
    def full_s(self) -> float:
        """Seconds of its largest batch; 0 as long as nothing is known."""
        times = self.times
        return times.full_s if self.most == times.most else times.expected_s(self.most)

    def batch_size(self, allowed_s: float) -> int:
        """Items of a batch at most whose requests are allowed so much time."""
        return min(self.most, self.times.efficient(allowed_s))

    def ahead(self, size: int) -> Ahead:
        """When to prepare a batch of at most so many items while the device has another one."""
        return Ahead(self.times.worthwhile(size), 2 * self._prepared_s + TURN_S)

    def prepared(self, seconds: float) -> None:
        """To bring a batch to the device has taken so long."""
        self._prepared_s += WEIGHT * (seconds - self._prepared_s)

    def out_of_memory(self, items: int, now: float) -> None:
        """So many did not fit: no batch is larger than the next smaller bucket, for a while."""
        bucket = 1 << max(0, (items - 1).bit_length() - 1)
        self.most = min(self.most, bucket)
        self._grow_at = now + GROW_AFTER_S

    def turn(self, now: float) -> None:
        """Time has passed: larger batches may fit again."""
        if self.most < self.times.most and now >= self._grow_at:
            self.most = min(2 * self.most, self.times.most)
            self._grow_at = now + GROW_AFTER_S
