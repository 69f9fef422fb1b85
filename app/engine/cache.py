"""The LRU cache of predictions, bounded in the bytes that it really costs."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from cachetools import Cache, LRUCache, TTLCache

from app.types import Arrays

# What an entry costs beside its key and bytes: its places in the three tables of a cachetools LRU
# cache (values, sizes, order), a tuple, a boxed size and allocator slack. Measured as growth of the
# process over 200,000 entries; the test of the cache's honesty holds it.
ENTRY_OVERHEAD_BYTES = 352
EMPTY_BYTES = sys.getsizeof(b"")
MOST_LAYOUTS = 256  # that are kept once for all values; answers of free dimensions have many

# Name, dtype and shape of each array of a value.
_Layout: TypeAlias = tuple[tuple[str, np.dtype, tuple[int, ...]], ...]
# The bytes of all arrays, one behind the other, what they are, and what the entry costs.
_Entry: TypeAlias = tuple[bytes, _Layout, int]


def cost_bytes(key: bytes, value: Arrays) -> int:
    """Real bytes of one entry: key, the arrays' bytes, and bookkeeping."""
    size = sum(array.nbytes for array in value.values())
    return sys.getsizeof(key) + EMPTY_BYTES + size + ENTRY_OVERHEAD_BYTES


class PredictionCache:
    """Key -> output name -> read-only array. Owned by the event loop: no lock, no other thread.

    What is kept is the bytes of a value's arrays in one piece: a dictionary and an array of its own
    for each would take 300 bytes more, and what is kept costs its time in the processor's caches.

    Args:
        capacity_bytes: 0 turns the cache off.
        ttl_s: seconds that an entry lives at most; None for ever.
        timer: the monotonic clock that the lifetime is counted with, in seconds.
    """

    def __init__(
        self, capacity_bytes: int, ttl_s: float | None, timer: Callable[[], float]
    ) -> None:
        self._capacity = capacity_bytes
        self._entries: Cache[bytes, _Entry]
        self._layouts: dict[_Layout, _Layout] = {}
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
        return None if entry is None else _arrays(entry)

    def put(self, key: bytes, value: Arrays) -> None:
        """Keep a copy of a value; one that is larger than the whole cache is simply not kept."""
        cost = cost_bytes(key, value)
        if cost > self._capacity:
            return
        layout: _Layout = tuple([(name, a.dtype, a.shape) for name, a in value.items()])
        known = self._layouts.get(layout)
        if known is not None:
            layout = known
        elif len(self._layouts) < MOST_LAYOUTS:
            self._layouts[layout] = layout
        pieces = [array.tobytes() for array in value.values()]
        self._entries[key] = (pieces[0] if len(pieces) == 1 else b"".join(pieces), layout, cost)


def _arrays(entry: _Entry) -> Arrays:
    data, layout, _ = entry
    arrays, start = {}, 0
    for name, dtype, shape in layout:
        count = math.prod(shape)
        arrays[name] = np.frombuffer(data, dtype, count, start).reshape(shape)
        start += count * dtype.itemsize
    return arrays


def _size(entry: _Entry) -> int:
    return entry[2]
