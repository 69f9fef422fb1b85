"""Several generator processes that share one rate, where one is not enough."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from types import TracebackType

from loadtests.capacity.shooting import Shooter, Shot, merged
from loadtests.capacity.trial import Cost, Outcomes

HEAD_START_S = 0.2  # from the word to fire until the first arrival: all have heard it by then
_shooters: list[Shooter] = []  # of a generator process: the one it was started with


class ManyProcesses:
    """Fires a share of the rate from each of several processes, at the same time.

    Args:
        number: of processes.
        make: makes the shooter of the process with this number; is called there.
    """

    def __init__(self, number: int, make: Callable[[int], Shooter]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pools = [
            ProcessPoolExecutor(1, context, initializer=_begin, initargs=(make, index))
            for index in range(number)
        ]

    def __enter__(self) -> ManyProcesses:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pool in self._pools:
            pool.shutdown(cancel_futures=True)

    def shoot(self, shot: Shot) -> tuple[Outcomes, Cost]:
        """See `loadtests.capacity.shooting.Gun`."""
        n = len(self._pools)
        shares = [
            Shot(shot.rate_per_s / n, shot.settle_s, shot.seconds, shot.seed * n + index)
            for index in range(n)
        ]
        ready: list[Future[None]] = [
            pool.submit(_prepare, share) for pool, share in zip(self._pools, shares, strict=True)
        ]
        for each in ready:
            each.result()
        start_s = time.perf_counter() + HEAD_START_S
        fired = [pool.submit(_fire, start_s) for pool in self._pools]
        return merged([each.result() for each in fired])


def _begin(make: Callable[[int], Shooter], index: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent ends the run
    _shooters.append(make(index))


def _prepare(shot: Shot) -> None:
    _shooters[0].prepare(shot)


def _fire(start_s: float) -> tuple[Outcomes, Cost]:
    return _shooters[0].fire(start_s)
