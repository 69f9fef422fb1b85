"""When would more items be answered? What admission asks, and what a refused caller is told."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from app.engine.batch_times import BatchTimes
from app.engine.clock import Clock
from app.engine.line import Line, batches
from app.engine.replicas import Replica
from app.engine.size_times import WEIGHT
from app.types import ModelId

MARGIN = 2.0  # mean deviations that a forecast is longer than it expects
# Of a running mean of what scatters: its own variance, as a share of that of one batch.
MEAN_VARIANCE = WEIGHT / (2 - WEIGHT)
ROUNDING = 1e-9  # of quotients
# Of the time allowed: for the ways from the caller and back, which nobody sees here, and for what
# slows down all batches at once.
RESERVE = 0.06


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
        if self._at_most_s(fresh, shapes, now) <= left_s:
            return True
        if line.batcher.waiting == 0 and any(r.is_free(line.model) for r in self._replicas):
            return True
        ahead = line.batcher.ahead(deadline)
        others_s = self._others_s(line, left_s, now)
        done = 0.0  # as a share of what is to be done: what each replica has done by then, in all
        for replica in self._working(line, now):
            pace = line.paces[replica.name]
            count, each_s = _to_do(
                pace.times, ahead, fresh, shapes, pace.batch_size(deadline - now)
            )
            margin_s = _margin_s(pace.times, count, each_s, left_s, replica.running_off_s)
            own_s = _own_share_s(left_s - margin_s, others_s)
            own_s -= line.limits.batch_wait_s + replica.running_s(now)
            if own_s >= count * each_s:
                return True  # alone; also where nothing is known of it
            if own_s > 0:
                done += math.floor(own_s / each_s + ROUNDING) / count
            if done >= 1 - ROUNDING:
                return True
        return False

    def clear_s(self, line: Line, allowed_s: float) -> float:
        """Seconds until what waits for the model now is done, by the running estimates.

        Args:
            line: the model's.
            allowed_s: the time that requests are allowed: it decides how large batches are.
        """
        now = self._clock.now()
        own_s = self._alone_s(line, allowed_s, now)
        return own_s + sum(min(own_s, each) for each in self._others_s(line, allowed_s, now))

    def wait_s(self, line: Line) -> float:
        """Seconds that a request which came now, and has time enough, would wait for its batch."""
        idle = line.batcher.waiting == 0 and any(r.is_free(line.model) for r in self._replicas)
        return 0.0 if idle else self.clear_s(line, math.inf)

    def _at_most_s(self, fresh: int, shapes: int, now: float) -> float:
        """A bound that is quick to find: everything in full batches, on the fastest replica.

        The last batch of each signature is not full; one that waits is taken to be one of theirs.
        """
        bound_s = 0.0
        for line in self._lines.values():
            fastest_s, most, running = math.inf, 1, 1
            for replica in self._replicas:
                pace = line.paces[replica.name]
                if replica.serves(line.model) and not replica.is_overdue(now, pace.full_s):
                    batch_s = pace.full_s * (1 + MARGIN * pace.times.deviation)
                    running = max(running, replica.running)
                    if batch_s * most <= fastest_s * pace.most:
                        fastest_s, most = batch_s, pace.most
            if fastest_s == math.inf:
                if any(replica.serves(line.model) for replica in self._replicas):
                    return math.inf  # all hang, or may
                continue  # it waits for a replica, and takes none from others
            queue = line.batcher
            partial = max(1, queue.shapes) + shapes - 1
            batches = (queue.waiting + fresh) // most + partial + running
            bound_s += batches * fastest_s
            bound_s += line.limits.batch_wait_s
        return bound_s

    def _alone_s(self, line: Line, allowed_s: float, now: float) -> float:
        """Seconds until what waits for the model is done, if there were no other.

        Each replica takes of it what it can, once it has done what it runs.
        """
        working = self._working(line, now)
        if line.batcher.waiting == 0:
            return sum([each.running_s(now) for each in working]) / max(1, len(working))
        speed, until_s = 0.0, math.inf  # as shares of what waits, by the second
        begun = 1.0  # what would have been done if all had begun now
        for replica in sorted(working, key=lambda each: each.busy_until if each.busy else 0.0):
            running_s = replica.running_s(now)
            if running_s >= until_s:
                break  # it is done before this one could help
            whole_s = line.waiting_s(line.paces[replica.name], allowed_s)
            if whole_s <= 0:
                return running_s  # nothing is known
            speed += 1 / whole_s
            begun += running_s / whole_s
            until_s = begun / speed
        return until_s if speed > 0 else 0.0

    def _others_s(self, line: Line, allowed_s: float, now: float) -> list[float]:
        """What waits for each other model that shares a device, in seconds of all that serve it."""
        if len(self._lines) == 1:
            return []
        return [
            self._alone_s(other, allowed_s, now)
            for other in self._lines.values()
            if other is not line and other.batcher.waiting and self._share(line, other)
        ]

    def _share(self, line: Line, other: Line) -> bool:
        """Whether two models are served by one replica."""
        for replica in self._replicas:  # `any` takes twice as long
            if replica.serves(line.model) and replica.serves(other.model):
                return True
        return False

    def _working(self, line: Line, now: float) -> list[Replica]:
        """The replicas that serve the model, but for those that are long overdue and may hang.

        Where all are, all: as if each could be done at any moment.
        """
        serving, working = [], []
        for each in self._replicas:
            if each.serves(line.model):
                serving.append(each)
                if not each.is_overdue(now, line.paces[each.name].full_s):
                    working.append(each)
        return working or serving


def _own_share_s(whole_s: float, others_s: Sequence[float]) -> float:
    """Of that time, what a model gets that shares it equally with others which need so much."""
    left_s = whole_s
    for sharers, need_s in zip(range(len(others_s) + 1, 1, -1), sorted(others_s), strict=True):
        if need_s * sharers >= left_s:
            return left_s / sharers
        left_s -= need_s
    return left_s


def _margin_s(
    times: BatchTimes, count: int, each_s: float, left_s: float, running_off_s: float
) -> float:
    """How much longer than expected it may take a replica to do its share of some batches.

    Batches are off independently of each other, but the running mean that all are expected by is
    off as well, and that for all of them: the variance of n batches is n + n^2 times the mean's.

    Args:
        times: of the replica.
        count: batches to be done.
        each_s: of one.
        left_s: in which a replica does its share of them.
        running_off_s: what the batch that runs may be off by: its mean deviation.
    """
    own = min(count, max(0.0, left_s) / each_s) if each_s > 0 else 0.0
    own_off_s = times.deviation * each_s * math.sqrt(own * (1 + own * MEAN_VARIANCE))
    return MARGIN * math.hypot(own_off_s, running_off_s)


def _to_do(
    times: BatchTimes, ahead: Sequence[int], fresh: int, shapes: int, size: int
) -> tuple[int, float]:
    """How many batches until so many more items are answered, and the seconds of one.

    What is due no later is done before, all in full batches: who comes later may join the last. Of
    several signatures each has batches of its own, mostly small ones.

    Args:
        times: of the replica that would run them.
        ahead: items that wait and are due no later, of each signature.
        fresh: more items.
        shapes: how many signatures these have.
        size: of a batch at most.
    """
    if shapes == 1 and len(ahead) <= 1:
        items = ahead[0] + fresh if ahead else fresh
        return _rounded_up(items, size), times.expected_s(size)
    count, seconds = batches(times, [*ahead, *[_rounded_up(fresh, shapes)] * shapes], size)
    return count, seconds / count


def _rounded_up(items: int, size: int) -> int:
    return -(-items // size)
