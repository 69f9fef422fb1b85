"""One model's queue, and what is known of how it is served."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from app.engine.execution.batch_runner import Contract
from app.engine.execution.complaints import Complaints
from app.engine.scheduling.batch_cost import BatchCost
from app.engine.scheduling.batch_policy import NO_ARRIVALS, Arrivals, BatchLimits
from app.engine.scheduling.queue import Ticket, TicketQueue
from app.engine.singleflight import SingleFlight
from app.metrics.bound import ModelMetrics
from app.types import ModelId

MOST_ARREARS_S = 1.0  # of device time that a model may have coming to it


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What holds for the queue of one model, and for its batches.

    Attributes:
        queue_limit_items: how many items may wait.
        queue_limit_bytes: how many bytes those may have.
        caches: whether its predictions are kept.
    """

    batches: BatchLimits
    queue_limit_items: int
    queue_limit_bytes: int
    caches: bool = True


@dataclass(eq=False, slots=True)
class ModelQueue:
    """One model's queue and how it is served.

    Attributes:
        costs: how long its batches take, by the name of the replica.
        caches: whether its predictions are kept.
        used_s: device time that it has had, as fair sharing counts it: the model that has had least
            goes first, and one that comes back from idleness has had as much as the others.
        running_s: of its batches that run, what is expected.
        running: its batches that run.
        gathering_since: when the batch that is growing was looked at first.
        seen: tickets that had been submitted one turn ago.
        arrivals: what has come since.
        flights: what waits or runs, by key; a revision of the same version has its own.
        complaints: writes what the model says of items that it fails on.
    """

    model: ModelId
    tickets: TicketQueue
    limits: BatchLimits
    contract: Contract
    metrics: ModelMetrics
    costs: dict[str, BatchCost]
    caches: bool = True
    used_s: float = 0.0
    running_s: float = 0.0
    running: int = 0
    gathering_since: float | None = None
    seen: int = 0
    arrivals: Arrivals = NO_ARRIVALS
    flights: SingleFlight[Ticket] = field(default_factory=SingleFlight)
    complaints: Complaints = field(default_factory=Complaints)

    def turn(self, now: float, fair_s: float) -> None:
        """The event loop has taken a turn: take note of what it has read.

        Args:
            now: the moment.
            fair_s: the most device time that a model had had when it was served.
        """
        items = self.tickets.submitted - self.seen
        idle = items >= self.tickets.queued  # it earns nothing; nor does a device that was sick
        self.used_s = max(self.used_s, fair_s if idle else fair_s - MOST_ARREARS_S)
        self.seen = self.tickets.submitted
        self.arrivals = Arrivals(items, now - (self.gathering_since or now))
        for cost in self.costs.values():
            cost.turn(now)

    def adjust(self, limits: ModelLimits) -> None:
        """Let other limits hold from now on; what waits already stays."""
        self.limits, self.caches = limits.batches, limits.caches
        self.tickets.limit_items = limits.queue_limit_items
        self.tickets.limit_bytes = limits.queue_limit_bytes

    @property
    def is_empty(self) -> bool:
        """Whether nothing of it waits or runs."""
        return self.tickets.waiting == 0 and self.running == 0

    def limits_for(self, size: int) -> BatchLimits:
        """The limits with batches of `size` items at most."""
        if size == self.limits.max_batch_size:
            return self.limits
        return replace(self.limits, max_batch_size=size)
