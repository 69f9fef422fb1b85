"""Forms batches by the batch policy, hands them to replicas, and settles their items."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, cast

import structlog

from app.backends.base import Backend, LaunchingBackend
from app.engine.batch_policy import Decision, decide, decide_ahead
from app.engine.batch_runner import Report, launch_batch, run_batch
from app.engine.clock import Clock, Timer
from app.engine.in_flight import Batch, Took
from app.engine.queue import ModelQueue, ShapeView, Ticket
from app.engine.replica import Replica, ReplicaState
from app.engine.replica_thread import Later
from app.engine.timeline import Timeline
from app.engine.widening import widened
from app.errors import BackendFailed, DeviceLost, ReplicaError
from app.metrics import Metrics
from app.telemetry.tracing import BatchRecord, Tracing
from app.types import ModelId, Outcome

LOG = structlog.get_logger(__name__)


class Settler(Protocol):
    """Receives the outcomes. A protocol, not a function: compiled code calls it directly."""

    def settle(
        self,
        queue: ModelQueue,
        ticket: Ticket,
        outcome: Outcome | None,
        queue_s: float,
        compute_s: float,
        batch_items: int,
    ) -> None:
        """Settle a ticket; called exactly once for each.

        Args:
            queue: the queue of its model.
            ticket: the ticket.
            outcome: its outcome; None if no request waits for it.
            queue_s: seconds in the queue.
            compute_s: seconds of computing.
            batch_items: size of its batch; 0 if it was not computed.
        """


class Dispatcher:
    """Forms batches, hands them to replicas, and passes on their outcomes. On the event loop.

    `on_fault` is called when a replica has broken, after it is marked sick. `worked_at` is when the
    dispatcher last finished a turn's work. `tracing` is notified of each batch.

    Args:
        replicas: all replicas.
        timeline: the timeline of the replicas.
        clock: the engine's clock.
        settler: receives every outcome.
        metrics: where to count the replicas' work.
        block_s: the event loop blocks for a batch that is expected to take less than this; see
            `EngineConfig`.
    """

    def __init__(
        self,
        replicas: list[Replica],
        timeline: Timeline,
        clock: Clock,
        settler: Settler,
        metrics: Metrics,
        block_s: float = 0.0,
    ) -> None:
        self._replicas = replicas
        self._timeline = timeline
        self._queues = timeline.queues
        self._clock = clock
        self._settler = settler
        self._ran = {
            each.name: metrics.batches_of(each.name, str(each.device)) for each in replicas
        }
        self._block_s = block_s
        self._blocked = False  # whether the event loop has blocked in this turn
        self._kept: set[str] = set()  # replicas reserved for the model whose turn is first
        self.tracing = Tracing()
        self.on_fault: Callable[[Replica, ReplicaError], None] | None = None
        self._fair_s = 0.0  # the highest device time of a model when it was served
        self.worked_at = clock.now()
        self._poked = False
        self._timer: Timer | None = None

    def add(self, queue: ModelQueue) -> None:
        """Serve a queue from now on."""
        self._timeline.add(queue)

    def remove(self, queue: ModelQueue) -> None:
        """Stop serving a queue; it must have no waiting or running items."""
        self._timeline.remove(queue)

    def serves(self, model: ModelId) -> bool:
        """Whether any replica serves the model."""
        for replica in self._replicas:  # noqa: SIM110  # per request: `any` takes twice as long
            if replica.serves(model):
                return True
        return False

    def ready_replicas(self, model: ModelId) -> int:
        """Number of replicas that serve the model."""
        return sum(replica.serves(model) for replica in self._replicas)

    def joined(self) -> None:
        """Use a replica that has become ready: items waiting until now did not wait for it."""
        self._timeline.joined()
        self.poke()

    def poke(self) -> None:
        """Start batches soon, because something changed.

        Runs after all callbacks that the event loop already has, so that requests read in the same
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
        for queue in self._queues.values():
            queue.turn(now, self._fair_s)
        wake_s: float | None = None
        served = True
        while served:  # one batch of the model with the least device time, until none can start
            served = False
            if self._blocked:  # read the sockets first
                self.poke()
                return
            self._kept.clear()
            for queue in self._in_turn():
                decision = self._serve(queue, now)
                if decision.size > 0:
                    served = True
                    break
                wake_s = _sooner(wake_s, decision.again_in_s)
        if wake_s == 0.0:
            self.poke()
        elif wake_s is not None:
            self._timer = self._clock.call_at(now + wake_s, self.poke)

    def _in_turn(self) -> list[ModelQueue]:
        """The models' queues, ordered by the device time that each has used."""
        queues = list(self._queues.values())
        return queues if len(queues) == 1 else sorted(queues, key=_charged)

    def _serve(self, queue: ModelQueue, now: float) -> Decision:
        """Start one batch of a queue if the policy says so."""
        if queue.tickets.queued == 0:
            queue.gathering_since = None
            return Decision(0)
        free = [replica for replica in self._replicas if replica.is_free(queue.model)]
        # A batch on a replica that proves a new version would wait for its forward, or forever.
        free = [replica for replica in free if not replica.is_called] or free
        if not free:
            queue.gathering_since = None
            return self._serve_ahead(queue, now)
        again: float | None = None
        left = True
        shapes = sorted(queue.tickets.shapes(), key=_due)
        for first in shapes:
            assigned, again_at = self._timeline.next_replica(queue, first, free)
            if assigned is None:
                again = _sooner(again, None if again_at is None else max(0.0, again_at - now))
                continue
            left = False
            shape, most = first, assigned.most
            if first.length and len(shapes) > 1:
                cost = queue.costs[assigned.replica.name]
                shape = widened(first, shapes, cost, assigned.share)
                most = cost.batch_size(shape.allowed_s, shape.length)
            limits = queue.limits_for(most)
            waited_s = now - shape.oldest_at
            decision = decide(shape.waiting, waited_s, assigned.share, limits, queue.arrivals)
            if decision.size > 0:
                queue.gathering_since = None
                self._start(queue, shape, decision.size, assigned.replica)
                return decision
            again = _sooner(again, decision.again_in_s)
        if queue.gathering_since is None:
            queue.gathering_since = now
        return self._serve_ahead(queue, now, again) if left else Decision(0, again)

    def _serve_ahead(self, queue: ModelQueue, now: float, again: float | None = None) -> Decision:
        """Prepare a batch for a busy replica, if no idle replica is available and worthwhile.

        Only the shape that is due first is prepared, and then no other model: otherwise a flood
        would get the next batch whenever a rare or new model waited for the device to be idle.
        """
        takes = False
        for replica in self._timeline.busy(queue):
            if replica.can_prefetch(queue.model):
                takes = True
            else:  # the model waits for this replica to be idle
                self._kept.add(replica.name)
        if not takes:
            return Decision(0, again)
        shapes = queue.tickets.shapes()
        shape = shapes[0] if len(shapes) == 1 else min(shapes, key=_due)
        soonest = self._timeline.next_prefetcher(queue, shape)
        if soonest is None or soonest.name in self._kept:
            return Decision(0, again)
        cost = queue.costs[soonest.name]
        if shape.length and len(shapes) > 1:
            shape = widened(shape, shapes, cost)
        size = cost.batch_size(shape.allowed_s, shape.length)
        ahead = cost.ahead(size, shape.length)
        if len(shapes) > len(shape.groups) or self._others_wait(queue, soonest):
            ahead = ahead._replace(least=1)
        free_in_s, waited_s = self._timeline.left_s(soonest), now - shape.oldest_at
        decision = decide_ahead(shape.waiting, waited_s, free_in_s, ahead, queue.limits_for(size))
        if decision.size > 0:
            self._start(queue, shape, decision.size, soonest)
            return decision
        self._kept.add(soonest.name)
        return Decision(0, _sooner(again, decision.again_in_s))

    def _others_wait(self, queue: ModelQueue, replica: Replica) -> bool:
        """Whether items wait of another model that the replica serves."""
        for other in self._queues.values():
            if other is not queue and other.tickets.queued and replica.serves(other.model):
                return True
        return False

    def _start(self, queue: ModelQueue, shape: ShapeView, size: int, replica: Replica) -> None:
        now = self._clock.now()
        tickets, expired = queue.tickets.take(shape.groups, size, now)
        for ticket in expired:
            self._settler.settle(queue, ticket, None, now - ticket.enqueued_at, 0.0, 0)
        if not tickets:
            return
        queue.metrics.batch_size.observe(len(tickets))
        items = [ticket.item for ticket in tickets]
        cost = queue.costs[replica.name]
        length = max([ticket.group[1] for ticket in tickets])
        compute_s = cost.compute_s(len(items), length)
        undisturbed = not replica.is_called  # no load runs in its thread
        serving = replica.models[queue.model]
        batch = Batch(
            queue=queue,
            replica=replica,
            tickets=tickets,
            started=now,
            length=length,
            expected_s=cost.expected_s(len(items), length),
            prefetched=replica.busy,
            undisturbed=undisturbed,
            serving=serving,
        )
        if self.tracing.followed or self.tracing.wants_batches:
            self._note_traces(batch, 0.0)
        launches = undisturbed and serving.launches

        def work(backend: Backend) -> Report | Later[Report]:
            if launches:
                launching = cast(LaunchingBackend, backend)  # `serving.launches` implies this
                return launch_batch(launching, items, queue.contract, replica.beat)
            return run_batch(backend, items, queue.contract, replica.beat)

        def failed(error: BaseException) -> Report:
            fault = error if isinstance(error, ReplicaError) else _bug(error)
            return Report([None] * len(items), fault, (), 0.0, 0)

        self._fair_s = max(self._fair_s, queue.used_s)
        queue.running += 1
        queue.running_s += batch.expected_s  # so that other models get other replicas meanwhile
        self._timeline.begin(batch)
        # Never block for a batch without measurements.
        self._blocked = undisturbed and not batch.prefetched and 0.0 < compute_s < self._block_s
        block_s = self._block_s if self._blocked else 0.0
        replica.start(queue.model, work, partial(self._ended, batch), failed, block_s)

    def _ended(self, batch: Batch, report: Report) -> None:
        """Record the end of a batch, and settle or move its items."""
        queue, replica, tickets = batch.queue, batch.replica, batch.tickets
        cost = queue.costs[replica.name]
        ended = self._clock.now()
        queue.running -= 1
        queue.running_s -= batch.expected_s
        took = self._timeline.end(batch, report.compute_s)
        busy_s = max(0.0, ended - took.began)
        self._ran[replica.name].ran(len(tickets), busy_s, report.compute_s, report.device)
        if report.prepared_s:
            cost.prepared(report.prepared_s)
        # The model is not charged for the time spent waiting for a fault, such as a hang.
        asked_s = math.inf if report.fault is None else batch.expected_s
        queue.used_s += min(took.seconds, asked_s)
        if batch.record is not None or self.tracing.followed:  # a traced request may have joined
            self._note_traces(batch, ended - batch.started)
        if batch.record is not None:
            self._tell(batch.record, batch, report, took)
        self._record(batch, report, took.began)
        if report.fault is None:
            cost.took(len(tickets), report.compute_s, took.overhead_s, batch.length)
        self.worked_at = self._clock.now()

    def _tell(self, record: BatchRecord, batch: Batch, report: Report, took: Took) -> None:
        """Report a batch to tracing, while the requests that wait for its items are known."""
        batch.begins(took.began)
        record.compute_s, record.forwards = report.compute_s, report.forwards
        record.errors = report.errors
        if report.fault is not None:
            record.fault = type(report.fault).__name__
            record.errors = [report.fault, *report.errors]
        self.tracing.batch_ended(record)

    def _note_traces(self, batch: Batch, ago_s: float) -> None:
        """Add the requests that now wait for a batch to its record, if sinks follow them."""
        traces = batch.queue.flights.traces(batch.tickets)
        record = batch.record
        if record is None and (traces or self.tracing.wants_batches):
            model, replica, size = batch.queue.model, batch.replica, len(batch.tickets)
            record = BatchRecord(model, replica.name, str(replica.device), size, batch.length)
            record.serving = batch.serving
            record.handed_over -= ago_s
            batch.record = record
            if not batch.prefetched:
                batch.begins(batch.started)
        if record is not None:
            record.add(traces)

    def _record(
        self,
        batch: Batch,
        report: Report,
        started: float,
    ) -> None:
        queue, replica, tickets = batch.queue, batch.replica, batch.tickets
        trace_id = "" if batch.record is None else batch.record.trace_id
        if report.forwards:
            queue.metrics.compute_seconds.observe(report.compute_s, trace_id)
        if report.forwards > 1:
            queue.metrics.splits.inc()
        if report.out_of_memory_at:
            queue.metrics.out_of_memory.inc()
            cost, name = queue.costs[replica.name], replica.name
            length = max([ticket.group[1] for ticket in tickets])
            cost.out_of_memory(report.out_of_memory_at, self._clock.now(), length)
            most = cost.most_of(length)
            LOG.warning("batch_limit_lowered", model=str(queue.model), replica=name, items=most)
        if report.errors:  # before the items are settled: the requests are known until then
            failed = [
                ticket
                for ticket, outcome in zip(tickets, report.outcomes, strict=True)
                if isinstance(outcome, BackendFailed)
            ]
            labels = partial(queue.flights.labels, failed)
            trace_ids = partial(_trace_ids, queue, failed)
            queue.complaints.write(queue.model, report.errors, labels, self._clock.now(), trace_ids)
        if report.fault is not None and replica.state is ReplicaState.READY:
            replica.state = ReplicaState.SICK
        computed, size = 0, len(tickets)
        moving: list[Ticket] = []
        for ticket, outcome in zip(tickets, report.outcomes, strict=True):
            queue_s = started - ticket.enqueued_at
            if outcome is not None:
                computed += 1
                own = queue.flights.trace_id(ticket) if trace_id else ""
                queue.metrics.queue_seconds.observe(queue_s, own)
                self._settler.settle(queue, ticket, outcome, queue_s, report.compute_s, size)
            elif ticket.abandoned:
                self._settler.settle(queue, ticket, None, queue_s, report.compute_s, size)
            elif self._can_move(queue, ticket, report.fault):
                moving.append(ticket)
            else:
                lost = BackendFailed("the replica failed and no other could run this item")
                self._settler.settle(queue, ticket, lost, queue_s, report.compute_s, size)
        queue.tickets.put_back(moving)
        queue.metrics.moved.inc(len(moving))
        queue.metrics.computed.inc(computed)
        if report.fault is not None and self.on_fault is not None:
            self.on_fault(replica, report.fault)
        self.poke()

    def _can_move(self, queue: ModelQueue, ticket: Ticket, fault: ReplicaError | None) -> bool:
        lost = isinstance(fault, DeviceLost)  # the whole process ends: no replica is left
        return not lost and not ticket.moved and self.ready_replicas(queue.model) > 0


def _trace_ids(queue: ModelQueue, tickets: Sequence[Ticket]) -> list[str]:
    """The trace ids of the requests for these items."""
    return [each.trace_id for each in queue.flights.traces(tickets) if each.trace_id]


def _sooner(one_s: float | None, other_s: float | None) -> float | None:
    """The shorter of two waits; None means that there is no wait."""
    if one_s is None or other_s is None:
        return other_s if one_s is None else one_s
    return min(one_s, other_s)


def _bug(error: BaseException) -> ReplicaError:
    return ReplicaError(f"bug: {type(error).__name__}: {error}")


def _charged(queue: ModelQueue) -> float:
    return queue.used_s + queue.running_s


def _due(shape: ShapeView) -> float:
    return shape.due_at
