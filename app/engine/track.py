"""What one replica runs; owned by the timeline."""

from __future__ import annotations

import math
from collections import deque

from app.engine.batch_cost import BatchCost
from app.engine.in_flight import Batch
from app.engine.replica import Replica
from app.types import ModelId

OVERDUE_S = 1.0  # a batch that is late by this plus a full batch may never end


class Use:
    """A replica's use for one model.

    Attributes:
        ran_at: when it last got a batch of the model, or since when that was possible.
        left_at: when it was last left idle although items of the model waited.
    """

    __slots__ = ("left_at", "ran_at")

    def __init__(self, now: float) -> None:
        self.ran_at = self.left_at = now


class Track:
    """What one replica runs; it changes in the same turn of the event loop as `Replica.busy`.

    Attributes:
        runs: its batches, the oldest first, each with its mean deviation in seconds.
        free_at: when all of them are expected to be done.
        free_since: when its last batch of any model ended.
        uses: its use for each model.
    """

    __slots__ = ("free_at", "free_since", "replica", "runs", "uses")

    def __init__(self, replica: Replica, now: float) -> None:
        self.replica = replica
        self.runs: deque[tuple[Batch, float]] = deque()
        self.free_at = self.free_since = now
        self.uses: dict[ModelId, Use] = {}

    def left_s(self, now: float) -> float:
        """Seconds until the replica is expected to have finished its batches."""
        return max(0.0, self.free_at - now) if self.runs else 0.0

    def off_s(self) -> float:
        """Mean deviation of `left_s`, in seconds."""
        return math.hypot(*[off_s for _, off_s in self.runs]) if self.runs else 0.0

    def overdue_at(self, cost: BatchCost) -> float:
        """When its batch is so late that it may never end; `cost` is that of the asking model."""
        return self.free_at + OVERDUE_S + cost.longest_s() if self.runs else math.inf
