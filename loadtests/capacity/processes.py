"""Several generator processes that share one rate, where one is not enough."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from types import TracebackType

from loadtests.openloop.shooting import Cost, Outcomes, Shooter, Shot, merged

HEAD_START_S = 0.2  # from the word to fire until the first arrival: all have heard it by then
_shooters: list[Shooter] = []  # of a generator process: the one it was started with


class ManyProcesses:
    """Fires a share of the rate from each of several processes, at the same time.

    Args:
        number: of processes.
        make: makes the shooter of the process with this number; is called there.

    Raises:
        Exception: on entering, what `make` raised.
    """

    def __init__(self, number: int, make: Callable[[int], Shooter]) -> None:
        context = multiprocessing.get_context("spawn")
        self._make = make
        self._pools = [
            ProcessPoolExecutor(1, context, initializer=_ignore_ctrl_c) for _ in range(number)
        ]
        self._pids: set[int] = set()

    def __enter__(self) -> ManyProcesses:
        try:
            started = [pool.submit(os.getpid) for pool in self._pools]
            self._pids = {each.result() for each in started}
            made = [pool.submit(_make, self._make, index) for index, pool in enumerate(self._pools)]
            for each in made:
                each.result()
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pool in self._pools:
            pool.shutdown(cancel_futures=True)

    def _kill(self) -> None:
        """End the processes now: nobody waits for what they still send."""
        for child in multiprocessing.active_children():
            if child.pid in self._pids:
                child.terminate()
        for pool in self._pools:
            pool.shutdown(cancel_futures=True)

    def shoot(self, shot: Shot) -> tuple[Outcomes, Cost]:
        """See `loadtests.capacity.finding.Gun`; cut short, by Ctrl-C or an error, it is over."""
        try:
            return self._shoot(shot)
        except BaseException:
            self._kill()
            raise

    def _shoot(self, shot: Shot) -> tuple[Outcomes, Cost]:
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


def _ignore_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent ends the run


def _make(make: Callable[[int], Shooter], index: int) -> None:
    # not in the initializer: what fails there only breaks the pool, without saying why
    _shooters.append(make(index))


def _prepare(shot: Shot) -> None:
    _shooters[0].prepare(shot)


def _fire(start_s: float) -> tuple[Outcomes, Cost]:
    return _shooters[0].fire(start_s)
