"""Predicts when each pool of replicas is free, for dispatch, admission, Retry-After and gauges."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import NamedTuple

from app.engine.batch_cost import WEIGHT, BatchCost
from app.engine.clock import Clock
from app.engine.pool import Batch, Pool, Took, Track
from app.engine.queue import Load, ModelQueue, ShapeView
from app.engine.replica import Replica
from app.types import ModelId
from models.padding import size_class

MARGIN = 2.0  # mean deviations that are added to the expected time of batches
# Variance of a running mean, as a share of the variance of one batch.
MEAN_VARIANCE = WEIGHT / (2 - WEIGHT)
ROUNDING = 1e-9  # of quotients
MOST_BATCHES = 100  # whose ends are foreseen for a slower pool, which helps with one at a time


class Work(NamedTuple):
    """Work of a pool, if it did all of it alone.

    Attributes:
        free_s: seconds until each of its replicas can begin.
        free_off_s: mean deviation of each of these.
        batches: number of batches; at least one.
        batch_s: seconds of one batch.
        deviation: relative deviation of `batch_s`.
    """

    free_s: Sequence[float]
    free_off_s: Sequence[float]
    batches: int
    batch_s: float
    deviation: float


class Timeline:
    """Tracks what replicas run and when they will be free. Owned by the event loop.

    A pool has the replicas of one kind of device. The first pool that works, the fastest, gets all
    batches; a slower one gets only items that the first would finish too late.

    Args:
        replicas: all replicas.
        clock: the engine's clock.

    Attributes:
        pools: the replicas, by kind of device.
        queues: queues of the served models; see `add` and `remove`.
    """

    def __init__(self, replicas: Sequence[Replica], clock: Clock) -> None:
        now = clock.now()
        kinds = dict.fromkeys([each.device.kind for each in replicas])
        self.pools = [
            Pool(kind, [each for each in replicas if each.device.kind == kind], now)
            for kind in kinds
        ]
        self._tracks = {track.replica.name: track for pool in self.pools for track in pool.tracks}
        self.queues: dict[ModelId, ModelQueue] = {}
        self._clock = clock

    def add(self, queue: ModelQueue) -> None:
        """Serve a model from now on; harmless if it is served."""
        self.queues[queue.model] = queue

    def remove(self, model: ModelId) -> None:
        """Stop serving a model, of which no item waits or runs; harmless if it is not served."""
        self.queues.pop(model, None)

    # What runs

    def begin(self, batch: Batch) -> None:
        """Record that a replica was handed a batch."""
        track, now = self._tracks[batch.replica.name], batch.started
        track.free_at = max(now, track.free_at if track.runs else now) + batch.expected_s
        track.runs.append((batch, batch.cost.deviation * batch.expected_s))

    def end(self, batch: Batch, compute_s: float) -> Took:
        """Record that a replica's oldest batch has ended; return its times.

        Args:
            batch: the batch, as given to `begin`.
            compute_s: seconds in the model.
        """
        track, now = self._tracks[batch.replica.name], self._clock.now()
        track.runs.popleft()
        took = batch.took(now, compute_s, track.free_since)
        track.free_since = now
        if track.runs:  # another batch was prepared, and begins now
            track.runs[0][0].begins(now)
            track.free_at = now + sum(each.expected_s for each, _ in track.runs)
        return took

    def joined(self) -> None:
        """Use a replica that has become ready: items waiting until now did not wait for it."""
        for track in self._tracks.values():
            if not track.runs:
                track.free_since = self._clock.now()

    # Which replicas come next?

    def ordered(self, queue: ModelQueue, now: float) -> list[Pool]:
        """The pools that serve a model, the fastest first, without those that may hang."""
        if len(self.pools) == 1:
            return self.pools
        pools = [pool for pool in self.pools if pool.working(queue, now)]
        if not pools:
            pools = [pool for pool in self.pools if pool.serving(queue.model)]
        pools.sort(key=lambda pool: queue.costs[pool.kind].item_s(0))
        return pools

    def busy(self, queue: ModelQueue, pool: Pool, now: float) -> list[Track]:
        """The replicas of a pool that serve the model and run a batch that is not overdue."""
        return [track for track in pool.working(queue, now) if track.runs]

    def first_late(
        self, queue: ModelQueue, pool: Pool, shape: ShapeView, slower_s: float, now: float
    ) -> int | None:
        """Place of the first waiting item that a pool alone would finish too late.

        Args:
            queue: the queue of the model.
            pool: the pool; items are done in their order, next to those of other shapes.
            shape: the items.
            slower_s: seconds of a batch on another pool, which must be in time with the item.
            now: the current time.
        """
        cost = queue.costs[pool.kind]
        size = cost.batch_size(shape.allowed_s, shape.length)
        batch_s = cost.expected_s(size, shape.length) * queue.tickets.queued / shape.waiting
        ends = sorted([each.left_s(now) for each in _able(queue, pool, now)])
        others_s = self._others_s(queue, shape.allowed_s, now)
        for place in range(0, min(shape.waiting, MOST_BATCHES * size), size):
            end_s = ends[0] + batch_s
            heapq.heapreplace(ends, end_s)
            due_s = queue.tickets.due_at(shape.groups[0], place) - now
            if due_s >= slower_s and end_s > own_share_s(due_s, others_s):
                return place
        return None

    # When will it be done?

    def can_meet(
        self, queue: ModelQueue, fresh: Sequence[Load], deadline: float, left_s: float, now: float
    ) -> bool:
        """Whether the `fresh` items are predicted to be answered within `left_s`.

        Items due no later go first. With an idle replica and an empty queue the answer is yes:
        otherwise a wrong estimate would reject all requests and never be corrected.

        Args:
            queue: the queue of the model.
            fresh: new items of each group.
            deadline: the deadline of all of them.
            left_s: seconds, less than until the deadline; see `Admission`.
            now: the current time.
        """
        pools = self.pools if len(self.pools) == 1 else self.ordered(queue, now)
        if self._is_idle(queue, pools) or self._is_ample(queue, pools, fresh, left_s, now):
            return True
        loads, fills_up = [*queue.tickets.due_before(deadline), *fresh], False
        if len(fresh) == 1 and len(loads) <= 2 and loads[0].length == fresh[0].length:
            loads, fills_up = [Load(sum([each.items for each in loads]), fresh[0].length)], True
        works = [
            self._work(queue, pool, loads, deadline - now, now, fills_up=fills_up) for pool in pools
        ]
        left_s -= queue.limits.batch_wait_s
        if not meets(works, left_s):
            return False
        others_s = self._others_s(queue, deadline - now, now)
        return not others_s or meets(works, own_share_s(left_s, others_s))

    def clear_s(self, queue: ModelQueue, allowed_s: float) -> float:
        """Seconds until the items that wait now are expected to be done.

        Args:
            queue: the queue of the model.
            allowed_s: the time that requests are allowed, which determines the size of batches.
        """
        now = self._clock.now()
        own_s = self._alone_s(queue, allowed_s, now)
        return own_s + sum(min(own_s, each) for each in self._others_s(queue, allowed_s, now))

    def wait_s(self, queue: ModelQueue) -> float:
        """Seconds that a request arriving now, with enough time, would wait for its batch."""
        if self._is_idle(queue, self.ordered(queue, self._clock.now())):
            return 0.0
        return self.clear_s(queue, math.inf)

    def _alone_s(self, queue: ModelQueue, allowed_s: float, now: float) -> float:
        """Seconds until the waiting items would be done if there were no other model."""
        pools = self.ordered(queue, now)
        if queue.tickets.waiting == 0:
            free_s = [each.left_s(now) for pool in pools for each in _able(queue, pool, now)]
            return min(free_s, default=0.0)
        loads = queue.tickets.waiting_by_shape()
        return completion_s([self._work(queue, pool, loads, allowed_s, now) for pool in pools])

    def _work(
        self,
        queue: ModelQueue,
        pool: Pool,
        loads: Sequence[Load],
        allowed_s: float,
        now: float,
        *,
        fills_up: bool = False,
    ) -> Work:
        """The work of a pool if it did all the model's work alone.

        Args:
            queue: the queue of the model.
            pool: the pool.
            loads: items of each group.
            allowed_s: determines the size of batches.
            now: the current time.
            fills_up: whether later items may join the last batch, which then counts as full.
        """
        cost, tracks = queue.costs[pool.kind], _able(queue, pool, now)
        count, seconds = batches(cost, loads, allowed_s)
        batch_s = seconds / count if count else 0.0
        if fills_up:
            length = loads[0].length
            batch_s = cost.expected_s(cost.batch_size(allowed_s, length), length)
        free_s, off_s = [each.left_s(now) for each in tracks], [each.off_s() for each in tracks]
        return Work(free_s, off_s, count, batch_s, cost.deviation)

    def _is_ample(
        self,
        queue: ModelQueue,
        pools: Sequence[Pool],
        fresh: Sequence[Load],
        left_s: float,
        now: float,
    ) -> bool:
        """Whether one replica alone would be in time by a wide margin: a cheap check, usually true.

        Assumes full batches, one more for each group, and equal shares for all models. Not used if
        lengths differ, because counting their batches takes longer.
        """
        tickets = queue.tickets
        if fresh[0].length or not pools:
            return False
        items = tickets.waiting + (
            fresh[0].items if len(fresh) == 1 else sum([each.items for each in fresh])
        )
        cost = queue.costs[pools[0].kind]
        most, full_s = cost.full()
        count = items // most + tickets.shape_count + len(fresh)
        work_s = count * full_s * (1 + MARGIN * cost.deviation) + queue.limits.batch_wait_s
        for track in pools[0].tracks:
            own_s = work_s
            if track.runs:
                own_s += track.left_s(now) + MARGIN * track.off_s()
            if len(self.queues) * own_s <= left_s and track.replica.serves(queue.model):
                return not track.runs or not track.is_overdue(cost.longest_s(), now)
        return False

    def _others_s(self, queue: ModelQueue, allowed_s: float, now: float) -> list[float]:
        """Seconds of waiting work for each other model that shares a replica with this one."""
        if len(self.queues) == 1:
            return []
        return [
            self._alone_s(other, allowed_s, now)
            for other in self.queues.values()
            if other is not queue and other.tickets.waiting and self._share(queue, other)
        ]

    def _share(self, queue: ModelQueue, other: ModelQueue) -> bool:
        """Whether any replica serves both models."""
        for track in self._tracks.values():  # `any` takes twice as long
            if track.replica.serves(queue.model) and track.replica.serves(other.model):
                return True
        return False

    def _is_idle(self, queue: ModelQueue, pools: Sequence[Pool]) -> bool:
        if queue.tickets.waiting or not pools:
            return False
        for track in pools[0].tracks:  # noqa: SIM110  # called for every request
            if track.replica.is_free(queue.model):
                return True
        return False


def _able(queue: ModelQueue, pool: Pool, now: float) -> list[Track]:
    """The working replicas; if all are overdue, all, as if each could finish at any moment."""
    return pool.working(queue, now) or pool.serving(queue.model)


def completion_s(works: Sequence[Work]) -> float:
    """Seconds until pools that share some work are expected to have done all of it.

    Args:
        works: one per pool. If batches take no time, there are no measurements: the work counts as
            done as soon as a replica is free.
    """
    speed = 0.0
    for work in works:
        end_s = _end_s(work)
        if end_s <= 0:
            return 0.0
        speed += 1 / end_s
    return 1 / speed if speed else 0.0


def meets(works: Sequence[Work], within_s: float) -> bool:
    """Whether pools will have done all the work in time, with a margin for each one's batches.

    Args:
        works: one per pool.
        within_s: the time limit, in seconds.
    """
    share = 0.0
    for work in works:
        done = 0
        for free_s, off_s in zip(work.free_s, work.free_off_s, strict=True):
            own_s = within_s - free_s - _margin_s(work, off_s, within_s)
            if own_s >= work.batches * work.batch_s:
                return True  # it needs no other; also if it has no measurements
            if own_s > 0:
                done += math.floor(own_s / work.batch_s + ROUNDING)
        share += done / work.batches
    return share >= 1 - ROUNDING


def own_share_s(whole_s: float, others_s: Sequence[float]) -> float:
    """Seconds of `whole_s` for a model that shares a device equally with others.

    Args:
        whole_s: seconds of the device.
        others_s: seconds that each other model needs.
    """
    left_s = whole_s
    for sharers, need_s in zip(range(len(others_s) + 1, 1, -1), sorted(others_s), strict=True):
        if need_s * sharers >= left_s:
            return left_s / sharers
        left_s -= need_s
    return left_s


def batches(cost: BatchCost, loads: Sequence[Load], allowed_s: float) -> tuple[int, float]:
    """Number of batches for these items, and their seconds on one replica.

    Groups without padding never share a batch. Assume that items left over from full batches are
    padded to their mean length.

    Args:
        cost: cost model of the replica.
        loads: items of each group.
        allowed_s: determines the size of batches.
    """
    made, seconds = 0, 0.0
    partial = items = mixed = total = 0  # for batches that are not full
    for count, length in loads:
        size = cost.batch_size(allowed_s, length)
        full, rest = divmod(count, size)
        made += full
        seconds += full * cost.expected_s(size, length)
        if rest and length:
            mixed += rest
            total += rest * length
        elif rest:
            partial += 1
            items += rest
    if partial:  # as if all had the same size: there may be hundreds
        made += partial
        seconds += partial * cost.expected_s(-(-items // partial))
    if mixed:
        length = size_class(-(-total // mixed))
        partial = -(-mixed // cost.batch_size(allowed_s, length))
        made += partial
        seconds += partial * cost.expected_s(-(-mixed // partial), length)
    return made, seconds


def _end_s(work: Work) -> float:
    """When equal replicas end the last of their batches, each begun as soon as one is free."""
    ends = sorted(work.free_s)
    if work.batch_s <= 0 or not ends:
        return ends[0] if ends else 0.0
    replicas = len(ends)
    rounds = work.batches // replicas - int((ends[-1] - ends[0]) / work.batch_s) - 1
    rounds, end_s = max(0, rounds), 0.0  # whole ones, once all replicas have begun
    for _ in range(work.batches - rounds * replicas):
        end_s = ends[0] + work.batch_s
        heapq.heapreplace(ends, end_s)
    return end_s + rounds * work.batch_s


def _margin_s(work: Work, free_off_s: float, within_s: float) -> float:
    """How much longer than expected a replica may take for its share.

    Batches deviate independently of each other, but an error of the running mean, their estimate,
    affects all of them alike: the variance of n batches is n + n^2 times that of the mean.
    """
    n = min(work.batches, max(0.0, within_s) / work.batch_s) if work.batch_s > 0 else 0.0
    off_s = work.deviation * work.batch_s * math.sqrt(n * (1 + n * MEAN_VARIANCE))
    return MARGIN * math.hypot(off_s, free_off_s)
