"""When would more items be answered? What admission asks, and what a refused caller is told."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from app.engine.clock import Clock
from app.engine.line import Line
from app.engine.replicas import Replica
from app.types import ModelId

MARGIN = 2.0  # mean deviations of batches that a forecast is longer than what it expects
OVERDUE_S = 1.0  # a batch that is late by so much and a full batch may never come
RESERVE = 0.05  # of the time allowed: for the ways from the caller and back, which nobody sees here


class Forecast:
    """Foresees by what runs, what waits, and how long batches take. On the event loop.

    Args:
        replicas: all there are.
        lines: the models that they serve, each with its queue.
        clock: the engine's.
    """

    def __init__(
        self, replicas: Sequence[Replica], lines: Mapping[ModelId, Line], clock: Clock
    ) -> None:
        self._replicas = replicas
        self._lines = lines
        self._clock = clock

    def left_s(self, deadline: float, lag_s: float) -> float:
        """Seconds that are left to be ready in.

        Args:
            deadline: of a request.
            lag_s: what `ReadingLag` said when it was read.
        """
        return (deadline - self._clock.now()) * (1 - RESERVE) - lag_s

    def can_meet(self, line: Line, fresh: int, deadline: float, left_s: float, shapes: int) -> bool:
        """Whether so many more items would be answered by their deadline, as far as one can tell.

        With an idle replica and nothing in the queue the answer is yes: a forecast that was wrong
        once would otherwise refuse everything, and never be put right.

        Args:
            line: the model's.
            fresh: how many.
            deadline: of them all.
            left_s: see `left_s`.
            shapes: how many signatures they have.
        """
        now = self._clock.now()
        if self._at_most_s(fresh, shapes) <= left_s:
            return True
        if line.batcher.waiting == 0 and any(r.is_free(line.model) for r in self._replicas):
            return True
        batches, each_s = _to_do(line, fresh, shapes, deadline, line.batch_size(left_s))
        rounds = _rounded_up(batches, self._count(line, now))
        return self._forecast_s(line, rounds * each_s, left_s, now) <= left_s

    def clear_s(self, line: Line, allowed_s: float) -> float:
        """Seconds until what waits for the model now is done, by the running estimates.

        Args:
            line: the model's.
            allowed_s: the time that requests are allowed: it decides how large batches are.
        """
        now = self._clock.now()
        own_s = self._running_s(line, now) + line.waiting_s(allowed_s) / self._count(line, now)
        return own_s + self._others_s(line, own_s, allowed_s, now)

    def wait_s(self, line: Line) -> float:
        """Seconds that a request which came now, and has time enough, would wait for its batch."""
        idle = line.batcher.waiting == 0 and any(r.is_free(line.model) for r in self._replicas)
        return 0.0 if idle else self.clear_s(line, math.inf)

    def _at_most_s(self, fresh: int, shapes: int) -> float:
        """A bound that is quick to find: everything in full batches, on one replica.

        The last batch of each signature is not full; one that waits is taken to be one of theirs.
        """
        bound_s = 0.0
        for line in self._lines.values():
            if line.batcher.waiting and not self._is_served(line):
                continue  # it waits for a replica, and takes none from others
            times, most = line.times, line.most  # which is less where a full batch did not fit
            full_s = times.full_s if most == times.most else times.expected_s(most)
            queue = line.batcher
            partial = max(1, queue.shapes) + shapes - 1
            batches = (queue.waiting + fresh) // most + partial + 1  # one that runs
            bound_s += batches * full_s * (1 + MARGIN * times.deviation)
            bound_s += line.limits.batch_wait_s
        return bound_s

    def _forecast_s(self, line: Line, batches_s: float, left_s: float, now: float) -> float:
        """Seconds until batches that take so long, one after the other, would be answered."""
        own_s = self._running_s(line, now) + batches_s + line.limits.batch_wait_s
        whole_s = own_s + self._others_s(line, own_s, left_s, now)
        # As if all were off to one side: what slows one batch down mostly slows the next ones too.
        return whole_s * (1 + MARGIN * line.times.deviation)

    def _running_s(self, line: Line, now: float) -> float:
        """Seconds until what runs is done: the mean over the replicas that work for the model."""
        working = self._working(line, now)
        running_s = [max(0.0, each.busy_until - now) for each in working if each.busy]
        return sum(running_s) / max(1, len(working))

    def _others_s(self, line: Line, own_s: float, allowed_s: float, now: float) -> float:
        """What other models take of the devices meanwhile: each no more than an equal share."""
        others_s = 0.0
        for other in self._lines.values():
            if other is not line and other.batcher.waiting and self._is_served(other):
                others_s += min(own_s, other.waiting_s(allowed_s) / self._count(other, now))
        return others_s

    def _is_served(self, line: Line) -> bool:
        return any(replica.serves(line.model) for replica in self._replicas)

    def _count(self, line: Line, now: float) -> int:
        return max(1, len(self._working(line, now)))

    def _working(self, line: Line, now: float) -> list[Replica]:
        """The replicas that serve the model and are not long overdue: those may hang."""
        latest = now - OVERDUE_S - line.times.full_s
        return [
            each
            for each in self._replicas
            if each.serves(line.model) and not (each.busy and each.busy_until < latest)
        ]


def _to_do(line: Line, fresh: int, shapes: int, deadline: float, size: int) -> tuple[int, float]:
    """How many batches until so many more items are answered, and the seconds of one.

    What is due no later is done before, all in full batches: who comes later may join the last. Of
    several signatures each has batches of its own, mostly small ones.
    """
    ahead = line.batcher.ahead(deadline)
    if shapes == 1 and len(ahead) <= 1:
        items = ahead[0] + fresh if ahead else fresh
        return _rounded_up(items, size), line.times.expected_s(size)
    batches, seconds = line.batches(ahead + [_rounded_up(fresh, shapes)] * shapes, size)
    return batches, seconds / batches


def _rounded_up(items: int, size: int) -> int:
    return -(-items // size)
