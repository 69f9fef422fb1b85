"""When would more items be answered? What admission asks, and what a refused caller is told."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from app.engine.clock import Clock
from app.engine.line import Line
from app.engine.replicas import Replica
from app.types import ModelId

MARGIN = 2.0  # mean deviations of batches that a forecast is longer than what it expects
IDLE_S = 0.010  # after so long without a request the event loop has waited for one
RESERVE = 0.03  # of the time allowed: for the ways from the caller and back, which nobody sees here


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
        self._reading = False  # the event loop is in the turn that began at:
        self._turn_at = self._read_at = clock.now()
        self._since = 0.0

    def can_meet(self, line: Line, fresh: int, deadline: float) -> bool:
        """Whether so many more items would be answered by their deadline, as far as one can tell.

        With an idle replica and nothing in the queue the answer is yes: a forecast that was wrong
        once would otherwise refuse everything, and never be put right.
        """
        now = self._clock.now()
        left_s = (deadline - now) * (1 - RESERVE) - self._lag_s(now)
        if self._at_most_s(fresh) <= left_s:
            return True
        if line.batcher.waiting == 0 and any(r.is_free(line.model) for r in self._replicas):
            return True
        return self._forecast_s(line, fresh, deadline, now, left_s) <= left_s

    def clear_s(self, line: Line, allowed_s: float) -> float:
        """Seconds until what waits for the model now is done, by the running estimates.

        Args:
            line: the model's.
            allowed_s: the time that requests are allowed: it decides how large batches are.
        """
        replicas = self._replicas_of(line)
        own_s = self._running_s(line, self._clock.now()) + line.waiting_s(allowed_s) / replicas
        return own_s + self._others_s(line, own_s, allowed_s)

    def _lag_s(self, now: float) -> float:
        """For how long at most what is being read may have waited for the event loop to read it.

        All that is read in a turn was there when the loop looked, and some of it came when the loop
        had just looked the time before.
        """
        if not self._reading:
            self._reading = True
            self._since = self._turn_at if now - self._read_at < IDLE_S else now
            self._turn_at = now
            asyncio.get_running_loop().call_soon(self._has_read)
        return now - self._since

    def _has_read(self) -> None:
        self._reading = False
        self._read_at = self._clock.now()

    def _at_most_s(self, fresh: int) -> float:
        """A bound that is quick to find: everything in full batches, on one replica."""
        bound_s = 0.0
        for line in self._lines.values():
            times = line.times
            batches = (line.batcher.waiting + fresh) // times.most + 2  # one that runs, one to fill
            bound_s += batches * times.full_s * (1 + MARGIN * times.deviation)
            bound_s += line.limits.batch_wait_s
        return bound_s

    def _forecast_s(
        self, line: Line, fresh: int, deadline: float, now: float, left_s: float
    ) -> float:
        """Seconds until so many more items of that deadline would be answered.

        What is due no later is done before, all in full batches: who comes later may join the last.
        """
        size = line.times.efficient(left_s)
        replicas = self._replicas_of(line)
        batches = -(-(line.batcher.ahead(deadline) + fresh) // size)
        own_s = self._running_s(line, now) - (-batches // replicas) * line.times.expected_s(size)
        own_s += line.limits.batch_wait_s
        whole_s = own_s + self._others_s(line, own_s, left_s)
        return whole_s * (1 + MARGIN * line.times.deviation)

    def _running_s(self, line: Line, now: float) -> float:
        """Seconds until what runs is done: the mean over the replicas that serve the model."""
        ready = [replica for replica in self._replicas if replica.serves(line.model)]
        left_s = sum([max(0.0, each.busy_until - now) for each in ready if each.busy])
        return left_s / max(1, len(ready))

    def _others_s(self, line: Line, own_s: float, allowed_s: float) -> float:
        """What other models take of the devices meanwhile: each no more than an equal share."""
        others_s = 0.0
        for other in self._lines.values():
            if other is not line and other.batcher.waiting:
                replicas = self._replicas_of(other)
                others_s += min(own_s, other.waiting_s(allowed_s) / replicas)
        return others_s

    def _replicas_of(self, line: Line) -> int:
        return max(1, sum([replica.serves(line.model) for replica in self._replicas]))
