"""One model's queue, and the state of serving it."""

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

MOST_ARREARS_S = 1.0  # maximum device time that is owed to a model


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """Limits of one model's queue, and of its batches.

    Attributes:
        queue_limit_items: maximum number of waiting items.
        queue_limit_bytes: maximum bytes of these items.
        caches: whether its predictions are cached.
    """

    batches: BatchLimits
    queue_limit_items: int
    queue_limit_bytes: int
    caches: bool = True


@dataclass(eq=False, slots=True)
class ModelQueue:
    """One model's queue, and the state of serving it.

    Attributes:
        costs: cost models of its batches, by the name of the replica.
        caches: whether its predictions are cached.
        used_s: device time as fair sharing counts it: the model with the least goes first, and a
            model that was idle counts as having used as much as the others.
        running_s: expected device time of its running batches.
        running: number of its running batches.
        gathering_since: when the batch that is growing was first considered.
        seen: number of tickets that had been submitted one turn ago.
        arrivals: items that have arrived since.
        flights: waiting and running flights, by key; each revision of a version has its own.
        complaints: logs the model's errors about single items.
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
        """Record what the event loop has read in a turn.

        Args:
            now: the current time.
            fair_s: the highest device time of a model when it was served.
        """
        items = self.tickets.submitted - self.seen
        idle = items >= self.tickets.queued  # an idle model saves up no device time
        self.used_s = max(self.used_s, fair_s if idle else fair_s - MOST_ARREARS_S)
        self.seen = self.tickets.submitted
        self.arrivals = Arrivals(items, now - (self.gathering_since or now))
        for cost in self.costs.values():
            cost.turn(now)

    def adjust(self, limits: ModelLimits) -> None:
        """Change the limits; items that already wait stay."""
        self.limits, self.caches = limits.batches, limits.caches
        self.tickets.limit_items = limits.queue_limit_items
        self.tickets.limit_bytes = limits.queue_limit_bytes

    @property
    def is_empty(self) -> bool:
        """Whether no item of the model waits or runs."""
        return self.tickets.waiting == 0 and self.running == 0

    def limits_for(self, size: int) -> BatchLimits:
        """The limits, with batches of at most `size` items."""
        if size == self.limits.max_batch_size:
            return self.limits
        return replace(self.limits, max_batch_size=size)
