"""Storage of rate-limit counts for the library `limits`, on one event loop.

The library's in-memory storage starts a thread to drop old counts whenever none is running, about
fifty times a second under load, and acquires a lock for each count. One loop needs neither.
"""

from __future__ import annotations

from collections.abc import Callable

from limits.storage.base import SlidingWindowCounterSupport, Storage

MAX_COUNTS = 20_000  # beyond this, the least recently used are forgotten


class WindowStorage(Storage, SlidingWindowCounterSupport):
    """Sliding-window counts: the last window's count fades while the current one grows.

    Args:
        clock: monotonic, in seconds.
    """

    STORAGE_SCHEME = None

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        # Number of a window, count of the window before it, count of the window itself.
        self._counts: dict[str, tuple[int, int, int]] = {}

    @property
    def base_exceptions(self) -> type[Exception]:
        """The exceptions that the library may wrap."""
        return ValueError

    def acquire_sliding_window_entry(
        self, key: str, limit: int, expiry: int, amount: int = 1
    ) -> bool:
        """Count `amount` if the limit leaves room for it."""
        number, past = divmod(self._clock(), expiry)
        before, now = self._at(key, int(number))
        if int(before * (expiry - past) / expiry + now) + amount > limit:
            return False
        counts = self._counts
        if counts.pop(key, None) is None and len(counts) >= MAX_COUNTS:
            del counts[next(iter(counts))]
        counts[key] = (int(number), before, now + amount)
        return True

    def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """Count and remaining time of the last window, then of the current window."""
        number, past = divmod(self._clock(), expiry)
        before, now = self._at(key, int(number))
        return before, expiry - past, now, 2 * expiry - past

    def clear_sliding_window(self, key: str, expiry: int) -> None:
        """Forget what was counted."""
        self._counts.pop(key, None)

    def clear(self, key: str) -> None:
        """Forget what was counted."""
        self._counts.pop(key, None)

    def reset(self) -> int:
        """Forget everything."""
        count = len(self._counts)
        self._counts.clear()
        return count

    def check(self) -> bool:
        """Always available: the counts are in memory."""
        return True

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """Unsupported: fixed windows."""
        raise NotImplementedError

    def get(self, key: str) -> int:
        """Unsupported: fixed windows."""
        raise NotImplementedError

    def get_expiry(self, key: str) -> float:
        """Unsupported: fixed windows."""
        raise NotImplementedError

    def _at(self, key: str, number: int) -> tuple[int, int]:
        """The counts of the previous window and of this one."""
        last_number, before, now = self._counts.get(key, (number, 0, 0))
        if last_number == number:
            return before, now
        return (now if last_number == number - 1 else 0), 0
