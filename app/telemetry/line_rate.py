"""A limit for lines of the log that clients can cause."""

from __future__ import annotations


class LineRate:
    """A token bucket.

    Args:
        burst: lines at once.
        per_s: lines per second after that.
    """

    __slots__ = ("_burst", "_left_out", "_lines", "_per_s", "_since")

    def __init__(self, burst: float, per_s: float) -> None:
        self._burst = burst
        self._per_s = per_s
        self._lines = burst  # that may be written now
        self._since = 0.0
        self._left_out = 0

    def allows(self, now: float) -> bool:
        """Whether one more line may be written.

        Args:
            now: seconds on a monotonic clock, the same for all calls.
        """
        self._lines = min(self._burst, self._lines + (now - self._since) * self._per_s)
        self._since = now
        if self._lines < 1.0:
            self._left_out += 1
            return False
        self._lines -= 1.0
        return True

    def take_left_out(self) -> int:
        """The number of lines that were not allowed since the last call."""
        left_out, self._left_out = self._left_out, 0
        return left_out
