"""One model's queue, and what is known of how it is served."""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.engine.batch_times import BatchTimes
from app.engine.batching import Batcher
from app.engine.isolation import Contract
from app.engine.policy import NO_ARRIVALS, Arrivals, BatchLimits
from app.metrics import ModelMetrics
from app.types import ModelId

MOST_ARREARS_S = 1.0  # of device time that a model may have coming to it


@dataclass(eq=False, slots=True)
class Line:
    """One model's queue and how it is served.

    Attributes:
        times: how long its batches take.
        used_s: device time that it has had, as fair sharing counts it: the model that has had least
            goes first, and who comes back from idleness has had as much as the others.
        running_s: of its batches that run, what is expected.
        gathering_since: when the batch that is growing was looked at first.
        seen: tickets that had been submitted one turn ago.
        arrivals: what has come since.
    """

    model: ModelId
    batcher: Batcher
    limits: BatchLimits
    contract: Contract
    metrics: ModelMetrics
    times: BatchTimes
    used_s: float = 0.0
    running_s: float = 0.0
    gathering_since: float | None = None
    seen: int = 0
    arrivals: Arrivals = NO_ARRIVALS

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

    def limits_for(self, allowed_s: float) -> BatchLimits:
        """Smaller batches for requests that are allowed little time, see `BatchTimes.efficient`."""
        size = self.times.efficient(allowed_s)
        if size == self.limits.max_batch_size:
            return self.limits
        return replace(self.limits, max_batch_size=size)

    def waiting_s(self, allowed_s: float) -> float:
        """Device time for what waits, in batches for requests that are allowed so much time."""
        waiting, size = self.batcher.waiting, self.times.efficient(allowed_s)
        rest_s = self.times.expected_s(waiting % size) if waiting % size else 0.0
        return waiting // size * self.times.expected_s(size) + rest_s
