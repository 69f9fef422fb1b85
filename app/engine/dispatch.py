"""Decide, act, record: batches are cut as the policy says, run by replicas, and settled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import structlog

from app.backends.base import Backend
from app.engine.batching import Batcher, LaneView, Ticket
from app.engine.clock import Clock, Timer
from app.engine.isolation import Contract, Report, run_batch
from app.engine.policy import NO_ARRIVALS, Arrivals, BatchLimits, Decision, decide
from app.engine.replicas import Replica, ReplicaState
from app.errors import BackendFailed, DeviceLost, ReplicaError
from app.metrics import ModelMetrics
from app.types import ModelId, Outcome

LOG = structlog.get_logger(__name__)

SMOOTHING = 0.2  # weight of the newest batch in the running estimate of seconds per item


@dataclass(eq=False, slots=True)
class Line:
    """One model's queue and how it is served.

    Attributes:
        seconds_per_item: running estimate over the batches so far; 0 before the first.
        gathering_since: when the batch that is growing was looked at first.
        seen: tickets that had been submitted one turn ago.
        arrivals: what has come since.
    """

    model: ModelId
    batcher: Batcher
    limits: BatchLimits
    contract: Contract
    metrics: ModelMetrics
    seconds_per_item: float = 0.0
    gathering_since: float | None = None
    seen: int = 0
    arrivals: Arrivals = NO_ARRIVALS

    def turn(self, now: float) -> None:
        """The event loop has taken a turn: take note of what it has read."""
        items = self.batcher.submitted - self.seen
        self.seen = self.batcher.submitted
        self.arrivals = Arrivals(items, now - (self.gathering_since or now))

    def took(self, seconds: float, items: int) -> None:
        """A batch of so many items took so long."""
        measured = seconds / items
        old = self.seconds_per_item
        self.seconds_per_item = measured if old == 0.0 else old + SMOOTHING * (measured - old)


# Takes what became of a ticket: its outcome (None: nobody wants one any more), and the seconds that
# it waited and computed.
Settle: TypeAlias = Callable[[Line, Ticket, Outcome | None, float, float], None]


class Dispatcher:
    """Owns which replica does what. Lives on the event loop.

    `on_fault` is told when a replica has broken; it is marked sick by then.

    Args:
        replicas: all there are.
        clock: the engine's.
        settle: takes every outcome, exactly once per ticket.
        block_s: for a batch that is expected to take less, the event loop stands still until it is
            there; see `EngineConfig`.
    """

    def __init__(
        self,
        replicas: list[Replica],
        clock: Clock,
        settle: Settle,
        block_s: float = 0.0,
    ) -> None:
        self._replicas = replicas
        self._clock = clock
        self._settle = settle
        self._block_s = block_s
        self._blocked = False  # has the event loop stood still in this turn?
        self.on_fault: Callable[[Replica, ReplicaError], None] | None = None
        self._lines: dict[ModelId, Line] = {}
        self._poked = False
        self._timer: Timer | None = None

    def add(self, line: Line) -> None:
        """Serve a line from now on."""
        self._lines[line.model] = line

    def serves(self, model: ModelId) -> bool:
        """Whether any replica serves the model."""
        for replica in self._replicas:  # noqa: SIM110  # for every request: `any` takes twice as long
            if replica.serves(model):
                return True
        return False

    def ready_replicas(self, model: ModelId) -> int:
        """How many replicas serve the model."""
        return sum(replica.serves(model) for replica in self._replicas)

    def predicted_wait_s(self, line: Line) -> float:
        """Seconds until what waits now is done, by the running estimate."""
        replicas = max(1, self.ready_replicas(line.model))
        return line.batcher.waiting * line.seconds_per_item / replicas

    def poke(self) -> None:
        """Something changed.

        Acts after what the event loop already holds, so that requests which were read in one
        wake-up share a batch.
        """
        if not self._poked:
            self._poked = True
            asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        self._poked = False
        self._blocked = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self._clock.now()
        for line in self._lines.values():
            line.turn(now)
        wake_s: float | None = None
        served = True
        while served:  # models take turns, a batch each, until no batch can start
            served = False
            for line in tuple(self._lines.values()):
                if self._blocked:  # the sockets first
                    self.poke()
                    return
                decision = self._serve(line, now)
                served = served or decision.size > 0
                wake_s = _sooner(wake_s, decision.again_in_s)
        if wake_s == 0.0:
            self.poke()
        elif wake_s is not None:
            self._timer = self._clock.call_at(now + wake_s, self.poke)

    def _serve(self, line: Line, now: float) -> Decision:
        """Start one batch of a line if the policy says so; it is then the last in turn."""
        free = [replica for replica in self._replicas if replica.is_free(line.model)]
        again: float | None = None
        if not free or line.batcher.waiting == 0:
            line.gathering_since = None
            return Decision(0)
        for lane in sorted(line.batcher.lanes(), key=_age):
            waited_s = now - lane.oldest_at
            decision = decide(lane.waiting, waited_s, len(free), line.limits, line.arrivals)
            if decision.size > 0:
                line.gathering_since = None
                self._start(line, lane, decision.size, free[0])
                self._lines[line.model] = self._lines.pop(line.model)
                return decision
            again = _sooner(again, decision.again_in_s)
        if line.gathering_since is None:
            line.gathering_since = now
        return Decision(0, again)

    def _start(self, line: Line, lane: LaneView, size: int, replica: Replica) -> None:
        now = self._clock.now()
        tickets, expired = line.batcher.cut(lane.signature, size, now)
        for ticket in expired:
            self._settle(line, ticket, None, now - ticket.enqueued_at, 0.0)
        if not tickets:
            return
        line.metrics.batch_size.observe(len(tickets))
        items = [ticket.item for ticket in tickets]

        def work(backend: Backend) -> Report:
            return run_batch(backend, items, line.contract)

        def done(report: Report) -> None:
            self._record(line, replica, tickets, report, now)

        def failed(error: BaseException) -> Report:
            fault = ReplicaError(f"bug: {type(error).__name__}: {error}")
            return Report([None] * len(items), fault, (), 0.0, 0)

        replica.start(line.model, work, done, failed, self._blocks_for(line, len(tickets)))

    def _blocks_for(self, line: Line, items: int) -> float:
        """For how many seconds at most the event loop stands still: for one batch in a turn."""
        expected_s = line.seconds_per_item * items
        if not 0.0 < expected_s < self._block_s:
            return 0.0
        self._blocked = True
        return self._block_s

    def _record(
        self, line: Line, replica: Replica, tickets: list[Ticket], report: Report, started: float
    ) -> None:
        if report.forwards:
            line.took(report.compute_s, len(tickets))
            line.metrics.compute_seconds.observe(report.compute_s)
        if report.forwards > 1:
            line.metrics.splits.inc()
        if report.errors:  # once a batch: a flood of bad items must not become a flood of logs
            first = str(report.errors[0])
            LOG.error("model_failed", model=str(line.model), items=len(report.errors), first=first)
        if report.fault is not None and replica.state is ReplicaState.READY:
            replica.state = ReplicaState.SICK
        computed = 0
        moving: list[Ticket] = []
        for ticket, outcome in zip(tickets, report.outcomes, strict=True):
            queue_s = started - ticket.enqueued_at
            if outcome is not None:
                computed += 1
                line.metrics.queue_seconds.observe(queue_s)
                self._settle(line, ticket, outcome, queue_s, report.compute_s)
            elif ticket.abandoned:
                self._settle(line, ticket, None, queue_s, report.compute_s)
            elif self._can_move(line, ticket, report.fault):
                moving.append(ticket)
            else:
                failed = BackendFailed("the replica failed and no other could take this item over")
                self._settle(line, ticket, failed, queue_s, report.compute_s)
        line.batcher.put_back(moving)
        line.metrics.moved.inc(len(moving))
        line.metrics.computed.inc(computed)
        if report.fault is not None and self.on_fault is not None:
            self.on_fault(replica, report.fault)
        self.poke()

    def _can_move(self, line: Line, ticket: Ticket, fault: ReplicaError | None) -> bool:
        lost = isinstance(fault, DeviceLost)  # the whole process goes: nowhere to move to
        return not lost and not ticket.moved and self.ready_replicas(line.model) > 0


def _sooner(one_s: float | None, other_s: float | None) -> float | None:
    """The shorter of two waits; None is no wait at all."""
    if one_s is None or other_s is None:
        return other_s if one_s is None else one_s
    return min(one_s, other_s)


def _age(lane: LaneView) -> float:
    return lane.oldest_at
