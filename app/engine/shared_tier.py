"""A second cache, shared with other servers, as the engine sees it: it may answer, or not in time.

It is asked for what is neither in this process's cache nor in flight (app/engine/lookups.py), and
told what was computed.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import numpy as np

from app.engine.execution.batch_runner import Layout
from app.types import Arrays


class NotFound(enum.Enum):
    """Why the second cache has no answer for an item; the values are those of the metric."""

    MISS = "miss"
    WRONG = "wrong"  # there is a value, but not of this item
    ERROR = "error"
    OPEN = "open"  # it is not asked for a while, because it has failed
    TIMEOUT = "timeout"
    SKIPPED = "skipped"  # computing is quicker, or the deadline too near
    LEFT = "left"  # no request waits for it any more


HIT = "hit"
Found: TypeAlias = Arrays | NotFound


class SharedTier(Protocol):
    """A cache elsewhere. All its methods return at once; they are called on the event loop."""

    @property
    def budget_s(self) -> float:
        """A request waits for it for that long at most."""

    @property
    def is_open(self) -> bool:
        """Whether nothing is asked now, because it has failed."""

    @property
    def round_trip_s(self) -> float:
        """Seconds that a question takes, as measured; infinite until it is."""

    def find(
        self, keys: Sequence[bytes], answered: Callable[[Sequence[Found]], None]
    ) -> Callable[[], None]:
        """Ask for the values of keys, in one question.

        Args:
            keys: at least one.
            answered: called at most once, on the event loop, with what was found of each key.

        Returns:
            What to call if nobody waits for the answer any more, because the time is up.
        """

    def keep(self, key: bytes, value: Arrays) -> None:
        """Keep a value, as soon as that is possible; it may be dropped."""


def fits(value: Arrays, layout: Layout) -> bool:
    """Whether a value can be an answer of the model: its outputs, and finite numbers only."""
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
