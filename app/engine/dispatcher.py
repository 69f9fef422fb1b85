"""Forms batches by the batch policy, hands them to replicas, and settles their items."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol, cast

from app.backends.base import Backend, LaunchingBackend
from app.engine.batch_policy import decide, decide_ahead
from app.engine.batch_runner import Report, launch_batch, run_batch
from app.engine.clock import Clock, Timer
from app.engine.observer import BatchObserver
from app.engine.pool import Batch, Pool
from app.engine.queue import ModelQueue, ShapeView, Ticket
from app.engine.replica import Replica, ReplicaState
from app.engine.replica_thread import Later
from app.engine.timeline import Timeline
from app.engine.widening import widened
from app.errors import BackendFailed, DeviceLost, ReplicaError
from app.types import Item, ModelId, Outcome

# A slower pool looks that often whether a faster one is late with the items that wait for it.
LOOK_S = 0.05


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
    dispatcher last finished a turn's work.

    Args:
        replicas: all replicas.
        timeline: the timeline of the replicas.
        clock: the engine's clock.
        settler: receives every outcome.
        observer: notified of every batch.
        block_s: the event loop blocks for a batch that is expected to take less than this; see
            `EngineConfig`.
    """

    def __init__(
        self,
        replicas: list[Replica],
        timeline: Timeline,
        clock: Clock,
        settler: Settler,
        observer: BatchObserver,
        block_s: float = 0.0,
    ) -> None:
        self._replicas = replicas
        self._timeline = timeline
        self._queues = timeline.queues
        self._clock = clock
        self._settler = settler
        self._observer = observer
        self._block_s = block_s
        self._blocked = False  # whether the event loop has blocked in this turn
        self._kept: set[str] = set()  # replicas reserved for the model whose turn is first
        self.on_fault: Callable[[Replica, ReplicaError], None] | None = None
        self._fair_s = 0.0  # the highest device time of a model when it was served
        self.worked_at = clock.now()
        self._poked = False
        self._wake_s = math.inf  # seconds until the next batch may be formed
        self._timer: Timer | None = None

    def ready_replicas(self, model: ModelId) -> int:
        """Number of replicas that serve the model."""
        return sum(replica.serves(model) for replica in self._replicas)

    def has_nothing(self) -> bool:
        """Whether no item of any model waits or runs."""
        for queue in self._queues.values():  # noqa: SIM110  # per request: `all` takes twice as long
            if not queue.is_empty:
                return False
        return True

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
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """Form batches, of the model with the least device time first, until none can start."""
        self._poked = self._blocked = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self._clock.now()
        for queue in self._queues.values():
            queue.turn(now, self._fair_s)
        while (batch := self._form(now)) is not None:
            self._run(batch)
            if self._blocked:  # read the sockets first
                self._wake_s = 0.0
                break
        if self._wake_s == 0.0:
            self.poke()
        elif self._wake_s < math.inf:
            self._timer = self._clock.call_at(now + self._wake_s, self.poke)
        self.worked_at = self._clock.now()

    def _form(self, now: float) -> Batch | None:
        """The next batch; without one, `_wake_s` says when to try again."""
        self._wake_s = math.inf
        self._kept.clear()
        queues = list(self._queues.values())
        if len(queues) > 1:
            queues.sort(key=_charged)
        for queue in queues:
            if queue.tickets.queued == 0:
                queue.gathering_since, queue.full = None, 0
                continue
            batch = self._batch_of(queue, now)
            if batch is not None:
                return batch
        return None

    def _batch_of(self, queue: ModelQueue, now: float) -> Batch | None:
        pools = self._timeline.pools
        if len(pools) > 1:
            pools = self._timeline.ordered(queue, now)
        if not pools:
            return None
        pool = pools[0]
        idle = pool.idle(queue.model)
        if idle and len(pools) > 1 and idle[0].runs_a_load:  # it may prove a version for long
            others = pools[1].idle(queue.model)
            if others and not others[0].runs_a_load:
                pool, idle = pools[1], others
        if idle:
            if queue.grows(now):
                self._wake_s = 0.0
                return None
            return self._for_idle(queue, pool, idle, now)
        queue.gathering_since = None
        batch = self._ahead(queue, pools[0], now)
        return batch if batch is not None or len(pools) == 1 else self._spilled(queue, pools, now)

    def _for_idle(
        self, queue: ModelQueue, pool: Pool, idle: list[Replica], now: float
    ) -> Batch | None:
        """A batch for an idle replica: of the shape that is due first, if it need not wait."""
        cost = queue.costs[pool.kind]
        shapes = queue.tickets.shapes()
        if len(shapes) > 1:
            shapes.sort(key=_due)
        for shape in shapes:
            if shape.length and len(shapes) > 1:
                shape = widened(shape, shapes, cost, 1 / len(idle))  # noqa: PLW2901
            queue.full = cost.batch_size(shape.allowed_s, shape.length)
            limits = queue.limits
            if queue.full < limits.max_batch_size:
                limits = replace(limits, max_batch_size=queue.full)
            decision = decide(shape.waiting, now - shape.oldest_at, len(idle), limits)
            if decision.size > 0:
                queue.gathering_since = None
                return self._cut(queue, shape, decision.size, idle[0], now)
            self._again(decision.again_in_s)
        return None

    def _ahead(self, queue: ModelQueue, pool: Pool, now: float) -> Batch | None:
        """A batch to prepare for the busy replica of the pool that will be free first.

        Only the shape that is due first is prepared, and then no other model: otherwise a flood
        would get the next batch whenever a rare or new model waited for the device to be idle.
        """
        soonest: Replica | None = None
        soonest_s, takes = math.inf, False
        for track in self._timeline.busy(queue, pool, now):
            left_s, able = track.left_s(now), track.replica.can_prefetch(queue.model)
            if not able:  # the model waits for this replica to be idle
                self._kept.add(track.replica.name)
            if left_s < soonest_s or (left_s == soonest_s and able and not takes):
                soonest, soonest_s, takes = track.replica, left_s, able
        if soonest is None or not takes or soonest.name in self._kept:
            return None
        shapes = queue.tickets.shapes()
        shape = shapes[0] if len(shapes) == 1 else min(shapes, key=_due)
        cost = queue.costs[pool.kind]
        if shape.length and len(shapes) > 1:
            shape = widened(shape, shapes, cost)
        size = cost.batch_size(shape.allowed_s, shape.length)
        ahead = cost.ahead(size, shape.length)
        if len(shapes) > len(shape.groups) or self._others_wait(queue, soonest):
            ahead = ahead._replace(least=1)
        limits = replace(queue.limits, max_batch_size=size)
        waited_s = now - shape.oldest_at
        decision = decide_ahead(shape.waiting, waited_s, soonest_s, ahead, limits)
        if decision.size > 0:
            return self._cut(queue, shape, decision.size, soonest, now)
        self._kept.add(soonest.name)
        self._again(decision.again_in_s)
        return None

    def _spilled(self, queue: ModelQueue, pools: list[Pool], now: float) -> Batch | None:
        """A batch for a slower pool, of items that the fastest would finish too late."""
        idle = pools[1].idle(queue.model)
        if not idle:
            return None
        cost = queue.costs[pools[1].kind]
        for shape in sorted(queue.tickets.shapes(), key=_due):
            size = min(cost.batch_size(shape.allowed_s, shape.length), shape.waiting)
            batch_s = cost.expected_s(size, shape.length)
            place = self._timeline.first_late(queue, pools[0], shape, batch_s, now)
            if place is not None:
                return self._cut(queue, shape, size, idle[0], now, place)
        self._again(LOOK_S)
        return None

    def _again(self, seconds: float | None) -> None:
        """Try to form a batch again after this time; None: only on a change."""
        if seconds is not None and seconds < self._wake_s:
            self._wake_s = seconds

    def _others_wait(self, queue: ModelQueue, replica: Replica) -> bool:
        """Whether items wait of another model that the replica serves."""
        for other in self._queues.values():
            if other is not queue and other.tickets.queued and replica.serves(other.model):
                return True
        return False

    def _cut(
        self,
        queue: ModelQueue,
        shape: ShapeView,
        size: int,
        replica: Replica,
        now: float,
        spilled_at: int | None = None,
    ) -> Batch | None:
        """Take the items of a batch from the queue; None if all have expired."""
        tickets, expired = queue.tickets.take(shape.groups, size, now, spilled_at or 0)
        for ticket in expired:
            self._settler.settle(queue, ticket, None, now - ticket.enqueued_at, 0.0, 0)
        if not tickets:
            self._again(0.0)
            return None
        cost, length = queue.costs[replica.device.kind], tickets[0].group[1]
        if len(shape.groups) > 1:
            length = max([ticket.group[1] for ticket in tickets])
        return Batch(
            queue,
            replica,
            cost,
            tickets,
            length,
            now,
            cost.expected_s(len(tickets), length),
            prefetched=replica.busy,
            undisturbed=not replica.runs_a_load,
            serving=replica.models[queue.model],
            spills=spilled_at is not None,
        )

    def _run(self, batch: Batch) -> None:
        """Hand a batch to its replica."""
        self._observer.began(batch)
        queue, replica = batch.queue, batch.replica
        self._fair_s = max(self._fair_s, queue.used_s)
        queue.running += 1
        queue.running_s += batch.expected_s  # so that other models get other replicas meanwhile
        self._timeline.begin(batch)
        block_s = self._block_s
        if block_s > 0:  # never for a batch without measurements
            compute_s = batch.cost.compute_s(len(batch.tickets), batch.length)
            whole = batch.undisturbed and not batch.prefetched
            self._blocked = whole and 0.0 < compute_s < block_s
            block_s = block_s if self._blocked else 0.0
        done = partial(self._ended, batch)
        failed = partial(_failed, len(batch.tickets))
        replica.start(queue.model, _work_of(batch), done, failed, block_s)

    def _ended(self, batch: Batch, report: Report) -> None:
        """Learn from a batch that has ended, and settle or move its items."""
        queue, replica, fault = batch.queue, batch.replica, report.fault
        now = self._clock.now()
        queue.running -= 1
        queue.running_s -= batch.expected_s
        took = self._timeline.end(batch, report.compute_s)
        # The model is not charged for the time spent waiting for a fault, such as a hang.
        queue.used_s += took.seconds if fault is None else min(took.seconds, batch.expected_s)
        if report.out_of_memory_at:
            batch.cost.out_of_memory(report.out_of_memory_at, now, batch.length)
        self._observer.ended(batch, report, took, now)
        if fault is not None and replica.state is ReplicaState.READY:
            replica.state = ReplicaState.SICK
        self._settle(batch, report, took.began)
        if fault is None:
            if report.prepared_s:
                batch.cost.prepared(report.prepared_s)
            batch.cost.took(
                len(batch.tickets),
                report.compute_s,
                took.overhead_s,
                batch.length,
                began=took.began,
                ended=now,
            )
        elif self.on_fault is not None:
            self.on_fault(replica, fault)
        for each in self._queues.values():
            if each.tickets.queued:
                self.poke()
                break
        self.worked_at = self._clock.now()

    def _settle(self, batch: Batch, report: Report, began: float) -> None:
        """Pass on the outcomes; items without one move to another replica, once."""
        queue, size = batch.queue, len(batch.tickets)
        moving: list[Ticket] = []
        for ticket, outcome in zip(batch.tickets, report.outcomes, strict=True):
            queue_s = began - ticket.enqueued_at
            if outcome is not None:
                self._settler.settle(queue, ticket, outcome, queue_s, report.compute_s, size)
            elif ticket.abandoned:
                self._settler.settle(queue, ticket, None, queue_s, report.compute_s, size)
            elif self._can_move(queue, ticket, report.fault):
                moving.append(ticket)
            else:
                lost = BackendFailed("the replica failed and no other could run this item")
                self._settler.settle(queue, ticket, lost, queue_s, report.compute_s, size)
        if moving:
            queue.tickets.put_back(moving)
            queue.metrics.moved.inc(len(moving))

    def _can_move(self, queue: ModelQueue, ticket: Ticket, fault: ReplicaError | None) -> bool:
        lost = isinstance(fault, DeviceLost)  # the whole process ends: no replica is left
        return not lost and not ticket.moved and self.ready_replicas(queue.model) > 0


def _work_of(batch: Batch) -> Callable[[Backend], Report | Later[Report]]:
    """Run a batch in the replica's thread, or launch it on an asynchronous device."""
    items: list[Item] = []
    for ticket in batch.tickets:
        items.append(ticket.item)
    contract, beat = batch.queue.contract, batch.replica.beat
    if batch.undisturbed and batch.serving.launches:

        def launch(backend: Backend) -> Later[Report]:
            launching = cast(LaunchingBackend, backend)  # `serving.launches` implies this
            return launch_batch(launching, items, contract, beat)

        return launch
    return partial(run_batch, items=items, contract=contract, beat=beat)


def _failed(items: int, error: BaseException) -> Report:
    bug = ReplicaError(f"bug: {type(error).__name__}: {error}")
    fault = error if isinstance(error, ReplicaError) else bug
    return Report([None] * items, fault, (), 0.0, 0)


def _charged(queue: ModelQueue) -> float:
    return queue.used_s + queue.running_s


def _due(shape: ShapeView) -> float:
    return shape.due_at
