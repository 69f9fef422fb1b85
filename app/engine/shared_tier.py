"""The engine's view of a second cache, shared with other servers, which may not answer in time.

It is queried for items that are neither in this process's cache nor in flight
(app/engine/lookups.py), and gets computed predictions.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import numpy as np

from app.engine.batch_runner import Layout
from app.types import Arrays


class NotFound(enum.Enum):
    """Why the second cache has no answer for an item; the values are those of the metric."""

    MISS = "miss"
    WRONG = "wrong"  # a value that is not of this item
    ERROR = "error"
    OPEN = "open"  # it is not queried for a while, because it has failed
    TIMEOUT = "timeout"
    SKIPPED = "skipped"  # computing is faster, or the deadline is too near
    LEFT = "left"  # no request waits for the item any more


HIT = "hit"
Found: TypeAlias = Arrays | NotFound


class SharedTier(Protocol):
    """A remote cache. All its methods return at once; they are called on the event loop."""

    @property
    def budget_s(self) -> float:
        """The longest time that a request waits for a lookup."""

    @property
    def is_open(self) -> bool:
        """Whether it is not queried now, because it has failed."""

    @property
    def round_trip_s(self) -> float:
        """Measured seconds of a lookup; infinite until one was measured."""

    def find(
        self, keys: Sequence[bytes], answered: Callable[[Sequence[Found]], None]
    ) -> Callable[[], None]:
        """Request the values of keys, in one query.

        Args:
            keys: at least one.
            answered: called at most once, on the event loop, with the result for each key.

        Returns:
            The function to call when the time limit is reached and the answer is not wanted.
        """

    def keep(self, key: bytes, value: Arrays) -> None:
        """Keep a value, as soon as possible; it may be dropped."""


def fits(value: Arrays, layout: Layout) -> bool:
    """Whether a value can be an answer of the model: its outputs, with only finite numbers."""
    if value.keys() != layout.keys():
        return False
    for name, (dtype, shape) in layout.items():
        array = value[name]
        if array.dtype.str != dtype or array.ndim != len(shape):
            return False
        for size, wanted in zip(array.shape, shape, strict=True):
            if wanted not in (-1, size):
                return False
        if array.dtype.kind in "fc" and not np.isfinite(array).all():
            return False
    return True
