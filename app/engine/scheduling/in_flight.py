"""A batch that a replica has: when it began to compute, and its overhead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from app.engine.execution.replica import Replica
from app.engine.scheduling.model_queue import ModelQueue
from app.engine.scheduling.queue import Ticket
from app.telemetry.tracing import BatchRecord
from app.types import Serving


class Took(NamedTuple):
    """What a batch took.

    Attributes:
        began: when its replica could compute it.
        seconds: of the device, as fair sharing counts them.
        overhead_s: of these what was not in the model; None: it is not known.
    """

    began: float
    seconds: float
    overhead_s: float | None


@dataclass(eq=False, slots=True)
class Batch:
    """One that was handed to a replica.

    Attributes:
        queue: of its model.
        replica: which runs it.
        tickets: what it is made of.
        started: when it was handed over.
        expected_s: what it was expected to take.
        prefetched: whether its replica had another one to end first.
        undisturbed: nothing was loaded in its replica's thread.
        serving: what runs it.
        length: up to which its items are padded; 0: nothing is.
        record: for what follows batches; None: nothing has followed this one yet.
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
        """Record that its replica begins it."""
        if self.record is not None:
            self.record.began = self.record.handed_over + (now - self.started)

    def took(self, ended: float, compute_s: float, free_since: float, left_at: float) -> Took:
        """What it took.

        Args:
            ended: when the event loop heard of its end.
            compute_s: in the model.
            free_since: when the batch before it ended on its replica.
            left_at: when its replica was last left idle on purpose.
        """
        if self.prefetched:  # the one before it has ended meanwhile
            began = owed_since = max(self.started, free_since)
        elif not self.undisturbed:
            return Took(self.started, compute_s, None)
        else:
            began = owed_since = self.started
            if not self.tickets[0].moved:
                # From where it could have begun: what keeps a batch from its device counts too.
                ready_at = self.tickets[0].enqueued_at + self.queue.limits.batch_wait_s
                owed_since = min(began, max(free_since, left_at, ready_at))
        seconds = max(compute_s, ended - owed_since)
        return Took(began, seconds, seconds - compute_s)
