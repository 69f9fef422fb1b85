"""Predicts when each replica is free, for dispatch, admission, Retry-After and the gauges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from app.engine.clock import Clock
from app.engine.completion import (
    MARGIN,
    Part,
    batches,
    completion_s,
    meets,
    own_share_s,
)
from app.engine.in_flight import Batch, Took
from app.engine.queue import Load, ModelQueue, ShapeView
from app.engine.replica import Replica
from app.engine.track import Track, Use
from app.types import ModelId

# An idle replica stays idle if a busy one will finish all waiting items in this share of the time
# that the idle one takes for one item.
MUCH_SOONER = 0.5
# A replica left idle as too slow still gets one item after idling for this many times the item's
# estimated time: otherwise a wrong estimate would never be corrected.
TRY_AFTER = 20.0
LATER_S = 1e-6  # just after a moment, not at it


class Assignment(NamedTuple):
    """A replica, the most items for it, and its share of the total speed of all idle ones."""

    replica: Replica
    most: int
    share: float


class Timeline:
    """Tracks what replicas run and when they will be free. Owned by the event loop.

    Args:
        replicas: all replicas.
        clock: the engine's clock.

    Attributes:
        queues: queues of the served models; see `add` and `remove`.
    """

    def __init__(self, replicas: Sequence[Replica], clock: Clock) -> None:
        self._tracks = {each.name: Track(each, clock.now()) for each in replicas}
        self.queues: dict[ModelId, ModelQueue] = {}
        self._clock = clock

    def add(self, queue: ModelQueue) -> None:
        """Serve a model from now on."""
        self.queues[queue.model] = queue
        for track in self._tracks.values():
            track.uses[queue.model] = Use(self._clock.now())

    def remove(self, queue: ModelQueue) -> None:
        """Stop serving a model; none of its items wait or run."""
        del self.queues[queue.model]
        for track in self._tracks.values():
            del track.uses[queue.model]

    # What runs

    def begin(self, batch: Batch) -> None:
        """Record that a replica was handed a batch."""
        track, now = self._tracks[batch.replica.name], batch.started
        deviation = batch.queue.costs[batch.replica.name].deviation
        track.free_at = max(now, track.free_at if track.runs else now) + batch.expected_s
        track.runs.append((batch, deviation * batch.expected_s))
        track.uses[batch.queue.model].ran_at = now

    def end(self, batch: Batch, compute_s: float) -> Took:
        """Record that a replica's oldest batch has ended; return its times.

        Args:
            batch: the batch, as given to `begin`.
            compute_s: seconds in the model.
        """
        track, now = self._tracks[batch.replica.name], self._clock.now()
        track.runs.popleft()
        left_at = track.uses[batch.queue.model].left_at
        took = batch.took(now, compute_s, track.free_since, left_at)
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

    # Which replica is next

    def next_replica(
        self, queue: ModelQueue, shape: ShapeView, free: Sequence[Replica]
    ) -> tuple[Assignment | None, float | None]:
        """Choose the fastest of the idle replicas, if it would do better than the busy ones.

        Record when a replica is left idle on purpose: that time is not overhead.

        Args:
            queue: the queue of the model.
            shape: the items of the batch.
            free: replicas that could begin it now; at least one.

        Returns:
            The replica, or None and the time at which to ask again.
        """
        now = self._clock.now()
        best: Assignment | None = None
        speeds = best_speed = 0.0
        again_at = math.inf
        known, worth = True, 0
        busy = self._busy(queue, now)
        for replica in free:
            cost, use = queue.costs[replica.name], self._tracks[replica.name].uses[queue.model]
            one_s = cost.expected_s(1, shape.length)
            if busy and one_s > 0 and self._is_too_slow(one_s, queue, shape, busy, now):
                use.left_at = now
                try_at = use.ran_at + TRY_AFTER * one_s
                if now >= try_at:
                    return Assignment(replica, 1, 1.0), None
                again_at = min(again_at, try_at, *(self._overdue_at(each, queue) for each in busy))
                continue
            worth += 1
            size = cost.batch_size(shape.allowed_s, shape.length)
            items = min(size, shape.waiting)
            seconds = cost.expected_s(items, shape.length)
            known = known and seconds > 0
            speed = items / seconds if seconds > 0 else 0.0
            speeds += speed
            if best is None or speed > best_speed:
                best, best_speed = Assignment(replica, size, 1.0), speed
        if best is None:
            return None, again_at
        share = best_speed / speeds if known else 1 / worth
        return (best if worth == 1 else best._replace(share=share)), None

    def next_prefetcher(self, queue: ModelQueue, shape: ShapeView) -> Replica | None:
        """The busy replica that would first finish a batch of the waiting items.

        None if that replica cannot prefetch a batch; others that can would finish later.
        """
        now = self._clock.now()
        best: Replica | None = None
        best_s, takes = math.inf, False
        for track in self._busy(queue, now):
            cost = queue.costs[track.replica.name]
            items = min(cost.batch_size(shape.allowed_s, shape.length), shape.waiting)
            done_s = track.left_s(now) + cost.expected_s(items, shape.length)
            if done_s < best_s or (done_s == best_s and not takes):
                best, best_s = track.replica, done_s
                takes = best.can_prefetch(queue.model)
        return best if takes else None

    def busy(self, queue: ModelQueue) -> list[Replica]:
        """The replicas that serve the model and run a batch that is not overdue."""
        return [track.replica for track in self._busy(queue, self._clock.now())]

    def left_s(self, replica: Replica) -> float:
        """Seconds until the replica is expected to have finished its batches."""
        return self._tracks[replica.name].left_s(self._clock.now())

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
        if self._is_idle(queue) or self._is_ample(queue, fresh, left_s, now):
            return True
        loads, fills_up = [*queue.tickets.ahead(deadline), *fresh], False
        if len(fresh) == 1 and len(loads) <= 2 and loads[0].length == fresh[0].length:
            loads, fills_up = [Load(sum([each.items for each in loads]), fresh[0].length)], True
        parts = self._parts(queue, loads, deadline - now, now, fills_up=fills_up)
        left_s -= queue.limits.batch_wait_s
        if not meets(parts, left_s):
            return False
        others_s = self._others_s(queue, deadline - now, now)
        return not others_s or meets(parts, own_share_s(left_s, others_s))

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
        return 0.0 if self._is_idle(queue) else self.clear_s(queue, math.inf)

    def _alone_s(self, queue: ModelQueue, allowed_s: float, now: float) -> float:
        """Seconds until the waiting items would be done if there were no other model."""
        if queue.tickets.waiting == 0:
            return min((each.left_s(now) for each in self._working(queue, now)), default=0.0)
        return completion_s(self._parts(queue, queue.tickets.waiting_by_shape(), allowed_s, now))

    def _parts(
        self,
        queue: ModelQueue,
        loads: Sequence[Load],
        allowed_s: float,
        now: float,
        *,
        fills_up: bool = False,
    ) -> list[Part]:
        """The work of each replica if it did all the model's work alone.

        Args:
            queue: the queue of the model.
            loads: items of each group; at least one item in total.
            allowed_s: determines the size of batches.
            now: the current time.
            fills_up: whether later items may join the last batch, which then counts as full.
        """
        parts = []
        for track in self._working(queue, now):
            cost = queue.costs[track.replica.name]
            count, seconds = batches(cost, loads, allowed_s)
            batch_s = seconds / count
            if fills_up:
                length = loads[0].length
                batch_s = cost.expected_s(cost.batch_size(allowed_s, length), length)
            parts.append(Part(track.left_s(now), track.off_s(), count, batch_s, cost.deviation))
        return parts

    def _is_ample(
        self, queue: ModelQueue, fresh: Sequence[Load], left_s: float, now: float
    ) -> bool:
        """Whether one replica alone would be in time by a wide margin: a cheap check, usually true.

        Assumes full batches, one more for each group, and equal shares for all models. Not used if
        lengths differ, because counting their batches takes longer.
        """
        tickets = queue.tickets
        if fresh[0].length:
            return False
        items = tickets.waiting + (
            fresh[0].items if len(fresh) == 1 else sum([each.items for each in fresh])
        )
        for track in self._tracks.values():
            if track.replica.serves(queue.model):
                cost = queue.costs[track.replica.name]
                count = items // cost.most_of(0) + tickets.shape_count + len(fresh)
                own_s = track.left_s(now) + MARGIN * track.off_s()
                own_s += count * cost.full_s() * (1 + MARGIN * cost.deviation)
                if len(self.queues) * (own_s + queue.limits.batch_wait_s) <= left_s:
                    return track.overdue_at(cost) >= now
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

    def _is_idle(self, queue: ModelQueue) -> bool:
        if queue.tickets.waiting:
            return False
        for track in self._tracks.values():  # noqa: SIM110  # called for every request
            if track.replica.is_free(queue.model):
                return True
        return False

    def _busy(self, queue: ModelQueue, now: float) -> list[Track]:
        return [
            track
            for track in self._tracks.values()
            if track.runs
            and track.replica.serves(queue.model)
            and track.overdue_at(queue.costs[track.replica.name]) >= now
        ]

    def _working(self, queue: ModelQueue, now: float) -> list[Track]:
        """The replicas that serve the model, without those that are overdue and may hang.

        If all are overdue, returns all of them, as if each could finish at any moment.
        """
        serving = [each for each in self._tracks.values() if each.replica.serves(queue.model)]
        working = [
            each for each in serving if each.overdue_at(queue.costs[each.replica.name]) >= now
        ]
        return working or serving

    def _is_too_slow(
        self, one_s: float, queue: ModelQueue, shape: ShapeView, busy: Sequence[Track], now: float
    ) -> bool:
        """Whether using an idle replica that takes `one_s` for an item does more harm than good.

        It does if a busy replica will finish all waiting items much earlier, or will meet the
        earliest deadline while the idle one will not.
        """
        for track in busy:
            cost = queue.costs[track.replica.name]
            size = cost.batch_size(shape.allowed_s, shape.length)
            batch_s = cost.expected_s(min(size, shape.waiting), shape.length)
            if batch_s <= 0:
                continue
            left_s = track.left_s(now)
            if left_s + -(-shape.waiting // size) * batch_s <= MUCH_SOONER * one_s:
                return True
            if now + one_s > shape.due_at >= now + left_s + batch_s:
                return True
        return False

    def _overdue_at(self, track: Track, queue: ModelQueue) -> float:
        return track.overdue_at(queue.costs[track.replica.name]) + LATER_S
