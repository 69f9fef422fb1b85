"""The LRU cache of predictions, bounded in the bytes that it really costs."""

from __future__ import annotations

import sys
from collections.abc import Callable

from cachetools import Cache, LRUCache, TTLCache

from app.types import Arrays

# What an entry costs beside its key and value: its places in the three tables of a cachetools LRU
# cache (values, sizes, order), a boxed size and allocator slack. Measured as growth of the process
# over 200,000 entries; the test of the cache's honesty holds it.
ENTRY_OVERHEAD_BYTES = 352


def cost_bytes(key: bytes, value: Arrays) -> int:
    """Real bytes of one entry: key, dictionary, arrays with their headers, and bookkeeping."""
    cost = sys.getsizeof(key) + sys.getsizeof(value) + ENTRY_OVERHEAD_BYTES
    for array in value.values():
        cost += sys.getsizeof(array)
    return cost


class PredictionCache:
    """Key -> output name -> read-only array. Owned by the event loop: no lock, no other thread.

    Args:
        capacity_bytes: 0 turns the cache off.
        ttl_s: seconds that an entry lives at most; None for ever.
        timer: the monotonic clock that the lifetime is counted with, in seconds.
    """

    def __init__(
        self, capacity_bytes: int, ttl_s: float | None, timer: Callable[[], float]
    ) -> None:
        self._capacity = capacity_bytes
        self._entries: Cache[bytes, tuple[int, Arrays]]
        if ttl_s is None:
            self._entries = LRUCache(capacity_bytes, getsizeof=_size)
        else:
            self._entries = TTLCache(capacity_bytes, ttl_s, timer=timer, getsizeof=_size)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def used_bytes(self) -> int:
        """Real bytes of all entries."""
        return int(self._entries.currsize)

    def get(self, key: bytes) -> Arrays | None:
        """The value, now the most recently used one; None where there is none."""
        entry = self._entries.get(key)
        return None if entry is None else entry[1]

    def put(self, key: bytes, value: Arrays) -> None:
        """Keep a value; one that is larger than the whole cache is simply not kept.

        The arrays must own their bytes and be read-only: a view would pin its whole batch.
        """
        cost = cost_bytes(key, value)
        if cost <= self._capacity:
            self._entries[key] = (cost, value)


def _size(entry: tuple[int, Arrays]) -> int:
    return entry[0]
