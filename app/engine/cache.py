"""The LRU cache of predictions, bounded in the bytes that it really costs."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from cachetools import Cache, LRUCache, TTLCache

from app.types import Arrays

# What an entry costs in addition to its key and bytes: its places in the three tables of a
# cachetools LRU cache (values, sizes, order), a tuple, a boxed size and allocator slack. Measured
# as growth of the process over 200,000 entries; a test compares it with the process.
ENTRY_OVERHEAD_BYTES = 352
EMPTY_BYTES = sys.getsizeof(b"")
# Equal layouts are kept once, in a table that is emptied when it is full: answers with free
# dimensions come in many shapes. From then on an entry pays for its own layout: four tuples, and
# the boxed numbers of a shape.
MOST_LAYOUTS = 256
LAYOUT_BYTES = 256  # of an array
ALIGNMENT = 8  # of each array within a value's bytes: their readers rely on it

# Name, dtype and shape of each array of a value.
_Layout: TypeAlias = tuple[tuple[str, np.dtype, tuple[int, ...]], ...]
# The bytes of all arrays, one behind the other, what they are, and what the entry costs.
_Entry: TypeAlias = tuple[bytes, _Layout, int]


def cost_bytes(key: bytes, value: Arrays) -> int:
    """Real bytes of one entry: key, the arrays' bytes, and bookkeeping."""
    size = sum(_padded(array.nbytes) for array in value.values())
    return sys.getsizeof(key) + EMPTY_BYTES + size + ENTRY_OVERHEAD_BYTES


class PredictionCache:
    """Key -> output name -> read-only array. Owned by the event loop: no lock, no other thread.

    What is kept is the bytes of a value's arrays in one piece: a dictionary and an array of its own
    for each would take 260 bytes more, and what is kept costs its time in the processor's caches.

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
        self._layouts_are_paid = False
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
        if self._capacity == 0:
            return
        cost = cost_bytes(key, value)
        if cost + LAYOUT_BYTES * len(value) > self._capacity:
            return
        layout: _Layout = tuple([(name, a.dtype, a.shape) for name, a in value.items()])
        known = self._layouts.get(layout)
        if known is None:
            if len(self._layouts) >= MOST_LAYOUTS:
                self._layouts.clear()
                self._layouts_are_paid = True
            known = self._layouts[layout] = layout
            if self._layouts_are_paid:
                cost += LAYOUT_BYTES * len(layout)
        pieces = [array.tobytes() for array in value.values()]
        data = pieces[0]
        if len(pieces) > 1:
            data = b"".join([piece.ljust(_padded(len(piece)), b"\0") for piece in pieces])
        self._entries[key] = (data, known, cost)


def _arrays(entry: _Entry) -> Arrays:
    data, layout, _ = entry
    arrays, start = {}, 0
    for name, dtype, shape in layout:
        count = math.prod(shape)
        arrays[name] = np.frombuffer(data, dtype, count, start).reshape(shape)
        start += _padded(count * dtype.itemsize)
    return arrays


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _size(entry: _Entry) -> int:
    return entry[2]
