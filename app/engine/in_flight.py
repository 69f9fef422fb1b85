"""A batch on a replica: when it began to compute, and its overhead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from app.engine.queue import ModelQueue, Ticket
from app.engine.replica import Replica
from app.telemetry.tracing import BatchRecord
from app.types import Serving


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
    """A batch that was handed to a replica.

    Attributes:
        queue: the queue of its model.
        replica: the replica that runs it.
        tickets: its tickets.
        started: when it was handed over.
        expected_s: its expected time.
        prefetched: whether its replica had to finish another batch first.
        undisturbed: whether nothing was being loaded in its replica's thread.
        serving: what the backend runs.
        length: the length to which its items are padded; 0 if they are not.
        record: its record for tracing; None if no sink has followed it yet.
    """

    queue: ModelQueue
    replica: Replica
    tickets: list[Ticket]
    started: float
    expected_s: float
    prefetched: bool
    undisturbed: bool
    serving: Serving
    length: int = 0
    record: BatchRecord | None = None

    def begins(self, now: float) -> None:
        """Record that its replica begins to compute it."""
        if self.record is not None:
            self.record.began = self.record.handed_over + (now - self.started)

    def took(self, ended: float, compute_s: float, free_since: float, left_at: float) -> Took:
        """The times of this batch.

        Args:
            ended: when the event loop was notified of its end.
            compute_s: seconds in the model.
            free_since: when the previous batch on its replica ended.
            left_at: when its replica was last left idle on purpose.
        """
        if self.prefetched:  # the previous batch has ended since
            began = owed_since = max(self.started, free_since)
        elif not self.undisturbed:
            return Took(self.started, compute_s, None)
        else:
            began = owed_since = self.started
            if not self.tickets[0].moved:
                # When it could have begun: overhead includes what kept the batch from its device.
                ready_at = self.tickets[0].enqueued_at + self.queue.limits.batch_wait_s
                owed_since = min(began, max(free_since, left_at, ready_at))
        seconds = max(compute_s, ended - owed_since)
        return Took(began, seconds, seconds - compute_s)
