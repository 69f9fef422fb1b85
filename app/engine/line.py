"""One model's queue, and what is known of how it is served."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from app.engine.batch_times import BatchTimes
from app.engine.batching import Batcher, Ticket
from app.engine.complaints import Complaints
from app.engine.isolation import Contract
from app.engine.pace import Pace
from app.engine.policy import NO_ARRIVALS, Arrivals, BatchLimits
from app.engine.refusal import Refusal
from app.engine.singleflight import SingleFlight
from app.metrics.bound import ModelMetrics
from app.types import ModelId

MOST_ARREARS_S = 1.0  # of device time that a model may have coming to it


@dataclass(frozen=True, slots=True)
class LineLimits:
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
class Line:
    """One model's queue and how it is served.

    Attributes:
        paces: how it is served, by the name of the replica.
        caches: whether its predictions are kept.
        used_s: device time that it has had, as fair sharing counts it: the model that has had least
            goes first, and who comes back from idleness has had as much as the others.
        running_s: of its batches that run, what is expected.
        running: its batches that run.
        gathering_since: when the batch that is growing was looked at first.
        seen: tickets that had been submitted one turn ago.
        arrivals: what has come since.
        refused: who was refused last, for one item that would have come too late.
        flights: what waits or runs, by key; a revision of the same version has its own.
        complaints: writes what the model says of items that it fails on.
    """

    model: ModelId
    batcher: Batcher
    limits: BatchLimits
    contract: Contract
    metrics: ModelMetrics
    paces: Mapping[str, Pace]
    caches: bool = True
    used_s: float = 0.0
    running_s: float = 0.0
    running: int = 0
    gathering_since: float | None = None
    seen: int = 0
    arrivals: Arrivals = NO_ARRIVALS
    refused: Refusal | None = None
    flights: SingleFlight[Ticket] = field(default_factory=SingleFlight)
    complaints: Complaints = field(default_factory=Complaints)

    def turn(self, now: float, fair_s: float) -> None:
        """The event loop has taken a turn: take note of what it has read.

        Args:
            now: the moment.
            fair_s: the most device time that a model had had when it was served.
        """
        items = self.batcher.submitted - self.seen
        idle = items >= self.batcher.waiting  # it earns nothing; nor does a device that was sick
        self.used_s = max(self.used_s, fair_s if idle else fair_s - MOST_ARREARS_S)
        self.seen = self.batcher.submitted
        self.arrivals = Arrivals(items, now - (self.gathering_since or now))
        for pace in self.paces.values():
            pace.turn(now)

    def adjust(self, limits: LineLimits) -> None:
        """Let other limits hold from now on; what waits already stays."""
        self.limits, self.caches = limits.batches, limits.caches
        self.batcher.limit_items = limits.queue_limit_items
        self.batcher.limit_bytes = limits.queue_limit_bytes

    @property
    def is_empty(self) -> bool:
        """Whether nothing of it waits or runs."""
        return self.batcher.waiting == 0 and self.running == 0

    def limits_for(self, size: int) -> BatchLimits:
        """The limits with batches of so many items at most."""
        if size == self.limits.max_batch_size:
            return self.limits
        return replace(self.limits, max_batch_size=size)

    def waiting_s(self, pace: Pace, allowed_s: float) -> float:
        """What that replica alone would take for what waits.

        Args:
            pace: of the replica.
            allowed_s: the time that requests are allowed: it decides how large batches are.
        """
        size = pace.batch_size(allowed_s)
        return batches(pace.times, self.batcher.waiting_by_shape(), size)[1]


def batches(times: BatchTimes, counts: Sequence[int], size: int) -> tuple[int, float]:
    """How many batches of at most `size` items these make, and their seconds on one replica.

    Args:
        times: of the replica.
        counts: items of each signature: two of them share no batch.
        size: at least one.
    """
    full = partial = items = 0  # `items` are those of the batches that are not full
    for count in counts:
        full += count // size
        if count % size:
            partial += 1
            items += count % size
    seconds = full * times.expected_s(size)
    if partial:  # as if they were all of one size: there may be hundreds
        seconds += partial * times.expected_s(-(-items // partial))
    return full + partial, seconds
