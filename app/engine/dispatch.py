"""Decide, act, record: batches are cut as the policy says, run by replicas, and settled."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias, cast

import structlog

from app.backends.base import Backend, LaunchingBackend
from app.engine.assignment import Option, assign, prefetching
from app.engine.batching import LaneView, Ticket
from app.engine.clock import Clock, Timer
from app.engine.isolation import Report, launch_batch, run_batch
from app.engine.line import Line
from app.engine.policy import Decision, decide, decide_ahead
from app.engine.replicas import Replica, ReplicaState
from app.engine.running import Batch
from app.engine.threads import Later
from app.errors import BackendFailed, DeviceLost, ReplicaError
from app.metrics import Metrics
from app.types import ModelId, Outcome

LOG = structlog.get_logger(__name__)

# Takes what became of a ticket: its outcome (None: nobody wants one any more), and the seconds that
# it waited and computed.
Settle: TypeAlias = Callable[[Line, Ticket, Outcome | None, float, float], None]


class Dispatcher:
    """Owns which replica does what. Lives on the event loop.

    `on_fault` is told when a replica has broken; it is marked sick by then. `lines` has the models
    that it serves, and `worked_at` says when it has last ended a turn's work.

    Args:
        replicas: all there are.
        clock: the engine's.
        settle: takes every outcome, exactly once per ticket.
        metrics: where to count what replicas run.
        block_s: for a batch that is expected to take less, the event loop stands still until it is
            there; see `EngineConfig`.
    """

    def __init__(
        self,
        replicas: list[Replica],
        clock: Clock,
        settle: Settle,
        metrics: Metrics,
        block_s: float = 0.0,
    ) -> None:
        self._replicas = replicas
        self._clock = clock
        self._settle = settle
        self._ran = {
            each.name: metrics.batches_of(each.name, str(each.device)) for each in replicas
        }
        self._block_s = block_s
        self._blocked = False  # has the event loop stood still in this turn?
        self._kept: set[str] = set()  # replicas that who is first in turn waits for
        self.on_fault: Callable[[Replica, ReplicaError], None] | None = None
        self.lines: dict[ModelId, Line] = {}
        self._fair_s = 0.0  # the most that a model had had when it was served
        self.worked_at = clock.now()
        self._poked = False
        self._timer: Timer | None = None

    def add(self, line: Line) -> None:
        """Serve a line from now on."""
        self.lines[line.model] = line

    def remove(self, line: Line) -> None:
        """Serve a line no more; nothing of it waits or runs."""
        del self.lines[line.model]

    def serves(self, model: ModelId) -> bool:
        """Whether any replica serves the model."""
        for replica in self._replicas:  # noqa: SIM110  # for every request: `any` takes twice as long
            if replica.serves(model):
                return True
        return False

    def ready_replicas(self, model: ModelId) -> int:
        """How many replicas serve the model."""
        return sum(replica.serves(model) for replica in self._replicas)

    def joined(self) -> None:
        """A replica has become ready: what has waited till now did not wait for its device."""
        for replica in self._replicas:
            if not replica.busy:
                replica.free_since = self._clock.now()
        self.poke()

    def poke(self) -> None:
        """Something changed.

        Acts after what the event loop already holds, so that requests which were read in one
        wake-up share a batch.
        """
        if not self._poked:
            self._poked = True
            asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        self._start_batches()
        self.worked_at = self._clock.now()

    def _start_batches(self) -> None:
        self._poked = False
        self._blocked = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self._clock.now()
        for line in self.lines.values():
            line.turn(now, self._fair_s)
        wake_s: float | None = None
        served = True
        while served:  # a batch at a time, of the model that has had least, until none can start
            served = False
            if self._blocked:  # the sockets first
                self.poke()
                return
            self._kept.clear()
            for line in self._in_turn():
                decision = self._serve(line, now)
                if decision.size > 0:
                    served = True
                    break
                wake_s = _sooner(wake_s, decision.again_in_s)
        if wake_s == 0.0:
            self.poke()
        elif wake_s is not None:
            self._timer = self._clock.call_at(now + wake_s, self.poke)

    def _in_turn(self) -> list[Line]:
        """The models in the order of the device time that they have had."""
        lines = list(self.lines.values())
        return lines if len(lines) == 1 else sorted(lines, key=_charged)

    def _serve(self, line: Line, now: float) -> Decision:
        """Start one batch of a line if the policy says so."""
        if line.batcher.waiting == 0:
            line.gathering_since = None
            return Decision(0)
        free = [replica for replica in self._replicas if replica.is_free(line.model)]
        # Where one proves a new version, a batch would wait for a forward of that, or for ever.
        free = [replica for replica in free if not replica.is_called] or free
        busy = self._busy(line, now) if len(self._replicas) > 1 or not free else ()
        if not free:
            line.gathering_since = None
            return self._serve_ahead(line, busy, now)
        again: float | None = None
        left = True
        options = [Option(replica, line.paces[replica.name]) for replica in free]
        for lane in sorted(line.batcher.lanes(), key=_due):
            waited_s = now - lane.oldest_at
            assigned, again_at = assign(lane, options, busy, now)
            if assigned is None:
                again = _sooner(again, None if again_at is None else max(0.0, again_at - now))
                continue
            left = False
            limits = line.limits_for(assigned.most)
            decision = decide(lane.waiting, waited_s, assigned.share, limits, line.arrivals)
            if decision.size > 0:
                line.gathering_since = None
                self._start(line, lane, decision.size, assigned.replica)
                return decision
            again = _sooner(again, decision.again_in_s)
        if line.gathering_since is None:
            line.gathering_since = now
        return self._serve_ahead(line, busy, now, again) if left else Decision(0, again)

    def _serve_ahead(
        self, line: Line, busy: Sequence[Option], now: float, again: float | None = None
    ) -> Decision:
        """No replica is idle, or none that is worth it: prepare a batch for a busy one.

        Of what waits only what is due first, and no other model after that: else a flood would have
        the next batch whenever what is rare or new waited for the device to be idle.
        """
        takes = False
        for option in busy:
            if option.replica.can_prefetch(line.model):
                takes = True
            else:  # it waits for that one to be idle
                self._kept.add(option.replica.name)
        if not takes:
            return Decision(0, again)
        lanes = line.batcher.lanes()
        lane = lanes[0] if len(lanes) == 1 else min(lanes, key=_due)
        soonest = prefetching(lane, busy, line.model, now)
        if soonest is None or soonest.replica.name in self._kept:
            return Decision(0, again)
        replica, pace = soonest
        size = pace.batch_size(lane.allowed_s)
        ahead = pace.ahead(size)
        if len(lanes) > 1 or self._others_wait(line, replica):
            ahead = ahead._replace(least=1)
        free_in_s, waited_s = replica.running_s(now), now - lane.oldest_at
        decision = decide_ahead(lane.waiting, waited_s, free_in_s, ahead, line.limits_for(size))
        if decision.size > 0:
            self._start(line, lane, decision.size, replica)
            return decision
        self._kept.add(replica.name)
        return Decision(0, _sooner(again, decision.again_in_s))

    def _others_wait(self, line: Line, replica: Replica) -> bool:
        """Whether items of another model wait that the replica serves."""
        for other in self.lines.values():
            if other is not line and other.batcher.waiting and replica.serves(other.model):
                return True
        return False

    def _busy(self, line: Line, now: float) -> list[Option]:
        """The replicas that serve the model and run a batch that will end."""
        found = []
        for replica in self._replicas:
            if replica.busy and replica.serves(line.model):
                pace = line.paces[replica.name]
                if not replica.is_overdue(now, pace.full_s):
                    found.append(Option(replica, pace))
        return found

    def _start(self, line: Line, lane: LaneView, size: int, replica: Replica) -> None:
        now = self._clock.now()
        tickets, expired = line.batcher.cut(lane.signature, size, now)
        for ticket in expired:
            self._settle(line, ticket, None, now - ticket.enqueued_at, 0.0)
        if not tickets:
            return
        line.metrics.batch_size.observe(len(tickets))
        items = [ticket.item for ticket in tickets]
        pace = line.paces[replica.name]
        compute_s = pace.times.compute_s(len(items))
        undisturbed = not replica.is_called  # by what is loaded in its thread
        batch = Batch(
            line=line,
            replica=replica,
            tickets=tickets,
            started=now,
            expected_s=pace.times.expected_s(len(items)),
            left_at=pace.left_at,
            prefetched=replica.busy,
            undisturbed=undisturbed,
            pressed=line.batcher.waiting > 0,
        )
        launches = undisturbed and replica.models[line.model].launches

        def work(backend: Backend) -> Report | Later[Report]:
            if launches:
                launching = cast(LaunchingBackend, backend)  # as it says of itself
                return launch_batch(launching, items, line.contract, replica.beat)
            return run_batch(backend, items, line.contract, replica.beat)

        def failed(error: BaseException) -> Report:
            fault = error if isinstance(error, ReplicaError) else _bug(error)
            return Report([None] * len(items), fault, (), 0.0, 0)

        self._fair_s = max(self._fair_s, line.used_s)
        line.running += 1
        line.running_s += batch.expected_s  # so that other replicas go to others meanwhile
        pace.ran_at = now
        free_at = max(now, replica.busy_until) if batch.prefetched else now
        replica.busy_until = free_at + batch.expected_s
        replica.newest_s = batch.expected_s
        replica.newest_off_s = batch.expected_s * pace.times.deviation
        older_off_s = replica.busy_off_s if batch.prefetched else 0.0
        replica.busy_off_s = math.hypot(older_off_s, replica.newest_off_s)
        # Never for what was not measured.
        self._blocked = undisturbed and not batch.prefetched and 0.0 < compute_s < self._block_s
        block_s = self._block_s if self._blocked else 0.0
        replica.start(line.model, work, partial(self._ended, batch), failed, block_s)

    def _ended(self, batch: Batch, report: Report) -> None:
        """A batch has come to an end, well or badly."""
        line, replica, tickets = batch.line, batch.replica, batch.tickets
        pace = line.paces[replica.name]
        ended = self._clock.now()
        line.running -= 1
        line.running_s -= batch.expected_s
        took = batch.took(ended, report.compute_s)
        replica.free_since = ended
        if replica.busy:  # another one was prepared, and begins now
            replica.busy_until = ended + replica.newest_s
            replica.busy_off_s = replica.newest_off_s
        busy_s = max(0.0, ended - took.began)
        self._ran[replica.name].ran(len(tickets), busy_s, report.compute_s, report.device)
        if report.prepared_s:
            pace.prepared(report.prepared_s)
        # Of a fault that was waited for, such as a hang, it has had no more than it asked for.
        asked_s = math.inf if report.fault is None else batch.expected_s
        line.used_s += min(took.seconds, asked_s)
        self._record(line, replica, tickets, report, took.began)
        if report.fault is None:
            pace.times.took(len(tickets), report.compute_s, took.overhead_s, pressed=batch.pressed)
        self.worked_at = self._clock.now()

    def _record(
        self, line: Line, replica: Replica, tickets: list[Ticket], report: Report, started: float
    ) -> None:
        if report.forwards:
            line.metrics.compute_seconds.observe(report.compute_s)
        if report.forwards > 1:
            line.metrics.splits.inc()
        if report.out_of_memory_at:
            line.metrics.out_of_memory.inc()
            pace = line.paces[replica.name]
            pace.out_of_memory(report.out_of_memory_at, self._clock.now())
            name = replica.name
            LOG.warning("batch_limit_lowered", model=str(line.model), replica=name, items=pace.most)
        if report.errors:  # before they are settled: then nobody waits any more
            failed = [
                (ticket.key, ticket)
                for ticket, outcome in zip(tickets, report.outcomes, strict=True)
                if isinstance(outcome, BackendFailed)
            ]
            labels = partial(line.flights.labels, failed)
            line.complaints.write(line.model, report.errors, labels, self._clock.now())
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
                lost = BackendFailed("the replica failed and no other could take this item over")
                self._settle(line, ticket, lost, queue_s, report.compute_s)
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


def _bug(error: BaseException) -> ReplicaError:
    return ReplicaError(f"bug: {type(error).__name__}: {error}")


def _charged(line: Line) -> float:
    return line.used_s + line.running_s


def _due(lane: LaneView) -> float:
    return lane.due_at
