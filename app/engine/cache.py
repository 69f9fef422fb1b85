"""LRU cache of predictions, limited by its real memory in bytes."""

from __future__ import annotations

import math
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from app.types import Arrays

# Cost of an entry in addition to its key and bytes: its place in the ordered table, a tuple, a
# boxed size and allocator slack; and, if entries have a lifetime, its place in the other table.
# Measured as growth of the process over 100,000 entries; a test compares it with the process.
ENTRY_OVERHEAD_BYTES = 256
LIFETIME_BYTES = 128
EMPTY_BYTES = sys.getsizeof(b"")
# Equal layouts are kept once, in a table that is emptied when it is full: answers with free
# dimensions have many shapes. After that an entry is charged for its own layout: four tuples, and
# the boxed numbers of a shape.
MOST_LAYOUTS = 256
LAYOUT_BYTES = 256  # per array
ALIGNMENT = 8  # of each array within a value's bytes: readers rely on it

# Name, dtype and shape of each array of a value.
_Layout: TypeAlias = tuple[tuple[str, np.dtype, tuple[int, ...]], ...]
# The bytes of all arrays, one after another, their layout, and the cost of the entry.
_Entry: TypeAlias = tuple[bytes, _Layout, int]


def cost_bytes(key: bytes, value: Arrays) -> int:
    """Real bytes of one entry: key, the arrays' bytes, and bookkeeping."""
    size = 0
    for array in value.values():
        size += -(-array.nbytes // ALIGNMENT) * ALIGNMENT  # compiled or not, faster than a call
    return sys.getsizeof(key) + EMPTY_BYTES + size + ENTRY_OVERHEAD_BYTES


class PredictionCache:
    """Key -> output name -> read-only array. Owned by the event loop: no lock, no other thread.

    The bytes of a value's arrays are kept in one piece: a dictionary and separate arrays would take
    260 bytes more, and more memory also costs time through the processor's caches.

    Args:
        capacity_bytes: 0 turns the cache off.
        ttl_s: maximum lifetime of an entry in seconds; None for no limit.
        timer: the monotonic clock for lifetimes, in seconds.
    """

    def __init__(
        self, capacity_bytes: int, ttl_s: float | None, timer: Callable[[], float]
    ) -> None:
        self._capacity = capacity_bytes
        self._ttl_s = ttl_s
        self._timer = timer
        self._used = 0
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()  # the least recently used first
        self._expiries: OrderedDict[bytes, float] = OrderedDict()  # the oldest first; with a ttl
        self._layouts: dict[_Layout, _Layout] = {}
        self._layouts_are_paid = False

    def __len__(self) -> int:
        self._expire()
        return len(self._entries)

    @property
    def used_bytes(self) -> int:
        """Real bytes of all entries."""
        self._expire()
        return self._used

    def get(self, key: bytes) -> Arrays | None:
        """The value, now the most recently used one; None if there is none."""
        return _arrays(self._entries[key]) if self.touch(key) else None

    def touch(self, key: bytes) -> bool:
        """Make a value the most recently used one, and return whether there is one.

        That takes a tenth of the time of `get`, which makes its arrays.
        """
        if self._expiries:
            self._expire()
        if key not in self._entries:
            return False
        self._entries.move_to_end(key)
        return True

    def put(self, key: bytes, value: Arrays) -> None:
        """Keep a copy of a value, unless it is larger than the whole cache."""
        if self._capacity == 0:
            return
        cost = cost_bytes(key, value) + (0 if self._ttl_s is None else LIFETIME_BYTES)
        if cost + LAYOUT_BYTES * len(value) > self._capacity:
            return
        columns, pieces = [], []
        for name, array in value.items():
            columns.append((name, array.dtype, array.shape))
            pieces.append(array.tobytes())
        layout: _Layout = tuple(columns)
        known = self._layouts.get(layout)
        if known is None:
            if len(self._layouts) >= MOST_LAYOUTS:
                self._layouts.clear()
                self._layouts_are_paid = True
            known = self._layouts[layout] = layout
            if self._layouts_are_paid:
                cost += LAYOUT_BYTES * len(layout)
        data = pieces[0]
        if len(pieces) > 1:
            data = b"".join([piece.ljust(_padded(len(piece)), b"\0") for piece in pieces])
        if self._expiries:
            self._expire()
        if key in self._entries:
            self._drop(key)
        while self._used + cost > self._capacity:
            self._drop(next(iter(self._entries)))
        self._entries[key] = (data, known, cost)
        self._used += cost
        if self._ttl_s is not None:
            self._expiries[key] = self._timer() + self._ttl_s

    def _expire(self) -> None:
        """Drop the entries whose lifetime has ended."""
        if not self._expiries:
            return
        now = self._timer()
        while self._expiries:
            key = next(iter(self._expiries))
            if self._expiries[key] > now:
                return
            self._drop(key)

    def _drop(self, key: bytes) -> None:
        self._used -= self._entries.pop(key)[2]
        if self._ttl_s is not None:
            del self._expiries[key]


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
