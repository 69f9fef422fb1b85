"""Keeps the processes of a handler running: starts, looks at, and restarts them."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import structlog

from app.errors import HandlerFailed
from app.handlers.contract import HandlerMetrics, HandlerSpec
from app.handlers.process import HandlerProcess, Pool

LOG = structlog.get_logger(__name__)
LOOK_S = 0.25
STOP_S = 1.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0  # before a restart, doubled each time
PATIENCE_S = 2.0  # until requests are refused because no process is ready
STEADY_S = 10.0  # a process that lived so long is restarted at once


class Keeper:
    """The processes of one version of a handler.

    Args:
        spec: of the handler.
        pool: gives the processes what to run.
        metrics: counts restarts.
        ready_s: seconds that a process may take until it is ready.

    Attributes:
        processes: all of them, ready or not.
    """

    def __init__(
        self, spec: HandlerSpec, pool: Pool, metrics: HandlerMetrics, ready_s: float
    ) -> None:
        self.processes: list[HandlerProcess] = []
        self._spec = spec
        self._pool = pool
        self._metrics = metrics
        self._ready_s = ready_s
        self._since: dict[HandlerProcess, float] = {}  # when each was started, or became ready
        self._reason: str | None = None  # why the last one ended, or could not be started
        self._ended_at = math.inf  # when the last one that was ready ended
        self._measuring = ThreadPoolExecutor(1, f"memory-{spec.name}")
        self._failures = 0  # processes that ended soon, in a row
        self._is_closing = False
        self._started: asyncio.Future[None] | None = None
        self._timers: set[asyncio.TimerHandle] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._labels: Mapping[str, object] = {"handler": spec.name, "version": spec.version}

    async def start(self) -> None:
        """Start all processes; returns when every one is ready.

        Raises:
            HandlerFailed: with the reason why one is not.
        """
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.create_future()
        self._look()
        for index in range(self._spec.processes):
            self._launch(index)
        await self._started

    async def close(self) -> None:
        """End all processes."""
        self._is_closing = True
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        await asyncio.gather(*(each.stop(STOP_S) for each in self.processes))
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._measuring.shutdown(wait=False)

    def free(self) -> HandlerProcess | None:
        """The process that takes another run and has the fewest; None if none does."""
        free = [each for each in self.processes if each.can_run]
        return min(free, key=lambda each: len(each.runs)) if free else None

    @property
    def problem(self) -> str | None:
        """Why no process works; None if one does, or may soon again."""
        if any(each.is_ready for each in self.processes):
            return None
        return self._reason if time.monotonic() - self._ended_at > PATIENCE_S else None

    @property
    def places(self) -> int:
        """How many runs the processes that are ready can have at once; 1 if none is."""
        ready = sum(each.is_ready for each in self.processes)
        return max(1, ready * self._spec.concurrency)

    @property
    def room(self) -> int:
        """How many more runs they take now."""
        taken = (len(each.runs) for each in self.processes if each.can_run)
        return sum(self._spec.concurrency - each for each in taken)

    def ready(self, process: HandlerProcess) -> None:
        """A process can take requests."""
        self._since[process] = time.monotonic()
        self._ended_at = math.inf
        started = self._started
        if started is not None and not started.done() and self._all_ready():
            started.set_result(None)

    def ended(self, process: HandlerProcess, cause: str, reason: str) -> None:
        """A process has ended: start another one, after a pause if they end soon."""
        self.processes.remove(process)
        since = self._since.pop(process)
        if self._is_closing:
            return
        LOG.error(
            "handler_process_ended",
            **self._labels,
            process=process.index,
            cause=cause,
            reason=reason,
        )
        self._metrics.restarted(cause)
        self._reason = reason
        if cause == "start":
            self._ended_at = -math.inf  # the next one will hardly do better
        else:
            self._ended_at = min(self._ended_at, time.monotonic())
        started = self._started
        if started is not None and not started.done():
            started.set_exception(HandlerFailed(f"the handler {self._spec.name}: {reason}"))
            return
        is_steady = cause != "start" and time.monotonic() - since > STEADY_S
        self._failures = 0 if is_steady else self._failures + 1
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self._failures - 1, 30))
        self._later(pause_s if self._failures > 1 else 0.0, self._launch, process.index)

    def _launch(self, index: int) -> None:
        process = HandlerProcess(self._spec, index, self._pool, self._measuring)
        self.processes.append(process)
        self._since[process] = time.monotonic()
        task = self._loop.create_task(process.start())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _all_ready(self) -> bool:
        return sum(each.is_ready for each in self.processes) == self._spec.processes

    def _look(self) -> None:
        now = time.monotonic()
        for process in [*self.processes]:
            process.look()
            if not process.is_ready and now - self._since.get(process, math.inf) > self._ready_s:
                process.end("start", f"it was not ready within {self._ready_s:g} s")
        self._pool.look(now)
        self._later(LOOK_S, self._look)

    def _later(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        def run() -> None:
            self._timers.discard(timer)
            if not self._is_closing:
                call(*arguments)

        timer = self._loop.call_later(seconds, run)
        self._timers.add(timer)
