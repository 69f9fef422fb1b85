"""Pools of equal replicas: what each replica runs, and when it will be free."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from app.engine.batch_cost import BatchCost
from app.engine.queue import ModelQueue, Ticket
from app.engine.replica import Replica
from app.telemetry.tracing import BatchRecord
from app.types import ModelId, Serving

OVERDUE_S = 1.0  # a batch that is late by this plus a full batch may never end


class Took(NamedTuple):
    """Times of a finished batch.

    Attributes:
        began: when its replica could compute it.
        seconds: device time, as fair sharing counts it.
        overhead_s: the part of it that was not in the model; None if unknown.
    """

    began: float
    seconds: float
    overhead_s: float | None


@dataclass(eq=False, slots=True)
class Batch:
    """A batch that is handed to a replica.

    Attributes:
        queue: the queue of its model.
        replica: the replica that runs it.
        cost: the cost model of its model on replicas of this pool.
        tickets: its tickets.
        length: the length to which its items are padded; 0 if they are not.
        started: when it was handed over.
        expected_s: its expected time.
        prefetched: whether its replica had to finish another batch first.
        undisturbed: whether nothing was being loaded in its replica's thread.
        serving: what the backend runs.
        spills: whether a slower pool runs it, which is idle unless faster ones have too much work.
        record: its record for tracing; None if no sink has followed it yet.
    """

    queue: ModelQueue
    replica: Replica
    cost: BatchCost
    tickets: list[Ticket]
    length: int
    started: float
    expected_s: float
    prefetched: bool
    undisturbed: bool
    serving: Serving
    spills: bool = False
    record: BatchRecord | None = None

    def begins(self, now: float) -> None:
        """Record that its replica begins to compute it."""
        if self.record is not None:
            self.record.began = self.record.handed_over + (now - self.started)

    def took(self, ended: float, compute_s: float, free_since: float) -> Took:
        """The times of this batch.

        Args:
            ended: when the event loop was notified of its end.
            compute_s: seconds in the model.
            free_since: when the previous batch on its replica ended.
        """
        began = since = self.started
        if self.prefetched:  # the previous batch has ended since
            began = since = max(self.started, free_since)
        elif not self.undisturbed:
            return Took(began, compute_s, None)
        elif not self.spills and not self.tickets[0].moved:
            # Overhead includes what kept the batch from its device, such as a busy event loop.
            ready_at = self.tickets[0].enqueued_at + self.queue.limits.batch_wait_s
            since = min(began, max(free_since, ready_at))
        seconds = max(compute_s, ended - since)
        return Took(began, seconds, seconds - compute_s)


class Track:
    """What one replica runs; it changes in the same turn of the event loop as `Replica.busy`.

    Attributes:
        runs: its batches, the oldest first, each with its mean deviation in seconds.
        free_at: when all of them are expected to be done.
        free_since: when its last batch ended.
    """

    __slots__ = ("free_at", "free_since", "replica", "runs")

    def __init__(self, replica: Replica, now: float) -> None:
        self.replica = replica
        self.runs: deque[tuple[Batch, float]] = deque()
        self.free_at = self.free_since = now

    def left_s(self, now: float) -> float:
        """Seconds until the replica is expected to have finished its batches."""
        return max(0.0, self.free_at - now) if self.runs else 0.0

    def off_s(self) -> float:
        """Mean deviation of `left_s`, in seconds."""
        return math.hypot(*[off_s for _, off_s in self.runs]) if self.runs else 0.0

    def is_overdue(self, longest_s: float, now: float) -> bool:
        """Whether its batch is so late that it may never end."""
        return bool(self.runs) and self.free_at + OVERDUE_S + longest_s < now


class Pool:
    """All replicas on one kind of device, which count as equal. Owned by the timeline.

    Args:
        kind: the kind of device.
        replicas: at least one.
        now: the current time.
    """

    __slots__ = ("kind", "tracks")

    def __init__(self, kind: str, replicas: Sequence[Replica], now: float) -> None:
        self.kind = kind
        self.tracks = [Track(replica, now) for replica in replicas]

    def idle(self, model: ModelId) -> list[Replica]:
        """The replicas that could begin a batch of the model now."""
        free: list[Replica] = []
        for track in self.tracks:
            if track.replica.is_free(model):
                free.append(track.replica)  # compiled, a loop is faster
        if len(free) < 2:
            return free
        # A batch on a replica that proves a new version would wait for its forward, or forever.
        return [replica for replica in free if not replica.runs_a_load] or free

    def working(self, queue: ModelQueue, now: float) -> list[Track]:
        """The replicas that serve the model, without those that are overdue and may hang."""
        longest_s = queue.costs[self.kind].longest_s()
        return [
            track
            for track in self.tracks
            if track.replica.serves(queue.model) and not track.is_overdue(longest_s, now)
        ]

    def serving(self, model: ModelId) -> list[Track]:
        """The replicas that serve the model."""
        return [track for track in self.tracks if track.replica.serves(model)]
