"""Profiles of this process over some seconds: batches, requests and torch's operators."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import structlog

from app.engine.replica import Replica, ReplicaState
from app.errors import ShuttingDown
from app.serving.turn import Turn
from app.telemetry.chrome import ChromeTrace, Collected, Collector
from app.telemetry.tracing import Tracing
from app.threads import in_thread, tell, unless_done

LOG = structlog.get_logger(__name__)

MOST_BYTES = 64 << 20  # of a trace, before compression
# Target number of events in a part; for each part torch holds the GIL twice for three milliseconds.
PART_EVENTS = 2000
FIRST_PART_S, LEAST_PART_S, LONGEST_PART_S = 0.1, 0.02, 0.25
LOOK_S = 0.05  # seconds between checks whether the server is stopping
PARK_S = 0.05  # for replicas to end their batches; a longer forward has few operators
PARKED_S = 1.0  # maximum for a replica: shorter than a hang that the watchdog reports
DONE, FULL, STOPPING = "the time is up", "the trace is full", "the server is shutting down"


Recorded = Callable[[int], Iterable[dict[str, Any]]]  # returns the events of a part


class Recorder(Protocol):
    """Records operators; see `app/backends/profiler.py` for its methods."""

    def start(self) -> None:
        """Begin the first part."""

    def next(self) -> Recorded:
        """End a part and begin the next one."""

    def stop(self) -> Recorded:
        """End the last part."""


@dataclass(frozen=True, slots=True)
class Process:
    """The process to profile.

    Attributes:
        name: its name in traces.
        turn: shared with the other workers of the server.
    """

    name: str
    turn: Turn


@dataclass(frozen=True, slots=True)
class Profile:
    """A finished trace.

    Attributes:
        content: in Chrome's format, possibly compressed.
        seconds: the recorded time.
        ended: why the recording ended.
    """

    content: bytes
    seconds: float
    ended: str


class Profiler:
    """Records one trace at a time.

    Args:
        recorder: records operators.
        tracing: reports requests and batches.
        replicas: their threads run the operators.
        stopping: whether the server is stopping.
        process: this process.
        most_bytes: maximum size of a trace.
    """

    def __init__(
        self,
        recorder: Recorder,
        tracing: Tracing,
        replicas: Sequence[Replica],
        stopping: Callable[[], bool],
        process: Process,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._recorder = recorder
        self._tracing = tracing
        self._replicas = replicas
        self._stopping = stopping
        self._process = process
        self._most_bytes = most_bytes
        self._recording = False

    async def profile(self, seconds: float, *, compressed: bool) -> Profile:
        """Record for this time, or until the server stops or the trace is full.

        Raises:
            AlreadyRecording: if a profile is already being recorded, in any worker.
            ShuttingDown: if the server is stopping.
        """
        if self._stopping():
            raise ShuttingDown("the server is shutting down; try another server")
        now, name = time.monotonic(), self._process.name
        with self._process.turn.take(now + seconds):
            LOG.info("profiling", seconds=seconds)
            try:
                trace = ChromeTrace(name, self._most_bytes, compressed=compressed)
                ended = await self._record(trace, now + seconds)
                took_s = round(time.monotonic() - now, 3)
                about = {"server": name, "seconds": took_s, "ended": ended}
                content = await in_thread(partial(trace.end, about), _discard)
            except asyncio.CancelledError:
                LOG.info("profile_dropped", seconds=round(time.monotonic() - now, 3))
                raise
        LOG.info("profiled", seconds=took_s, ended=ended, bytes=trace.nbytes)
        return Profile(content, took_s, ended)

    async def _record(self, trace: ChromeTrace, ends_at: float) -> str:
        """Record part by part; returns why the recording ended."""
        collector = Collector()
        reading: asyncio.Future[int] | None = None
        part_s, since = FIRST_PART_S, time.monotonic()
        self._tracing.add(collector)
        try:
            async with self._parked():  # so that each recorded batch was handed over after `add`
                self._start()
            while True:
                await self._wait(min(since + part_s, ends_at))
                go_on = not self._is_over(ends_at)
                add = await self._end_part(trace, collector, go_on=go_on)
                now = time.monotonic()
                took_s, since = now - since, now
                reading = asyncio.ensure_future(in_thread(add, _discard))
                if go_on:
                    await asyncio.wait((reading,), timeout=min(2 * part_s, LONGEST_PART_S))
                if go_on and not reading.done():
                    events = await self._catch_up(trace, collector, reading, ends_at)
                    since = time.monotonic()
                else:
                    events = await reading
                if trace.is_full:
                    return FULL
                if not self._recording:
                    return STOPPING if self._stopping() else DONE
                wanted_s = took_s * PART_EVENTS / max(events, 1)
                part_s = max(LEAST_PART_S, min(LONGEST_PART_S, 2 * part_s, wanted_s))
        finally:
            self._tracing.remove(collector)
            if reading is not None:
                reading.cancel()
            try:
                if self._recording:
                    async with self._parked():
                        self._stop()
            finally:
                if self._recording:  # cancelled again while waiting for the replicas
                    self._stop()

    async def _catch_up(
        self,
        trace: ChromeTrace,
        collector: Collector,
        reading: asyncio.Future[int],
        ends_at: float,
    ) -> int:
        """Pause recording until everything is read; returns the events of the part being read.

        Reading took longer than recording: without this gap, each part would be longer than the
        one before.
        """
        add = await self._end_part(trace, collector, go_on=False)
        gap_from = time.perf_counter()
        events = await reading
        if not trace.is_full:
            await in_thread(add, _discard)
        if not (trace.is_full or self._is_over(ends_at)):
            async with self._parked():
                self._start()
        trace.recorder_paused("gap", gap_from, time.perf_counter())
        return events

    def _start(self) -> None:
        self._recorder.start()
        self._recording = True

    def _stop(self) -> Recorded:
        self._recording = False
        return self._recorder.stop()

    async def _end_part(
        self, trace: ChromeTrace, collector: Collector, *, go_on: bool
    ) -> Callable[[], int]:
        """End a part and begin the next if `go_on`; returns what adds it to the trace."""
        async with self._parked():
            paused = time.perf_counter()
            recorded = self._recorder.next() if go_on else self._stop()
            resumed = time.perf_counter()
        return partial(_added, trace, recorded, collector.take(), paused, resumed)

    def _is_over(self, ends_at: float) -> bool:
        return self._stopping() or time.monotonic() >= ends_at

    async def _wait(self, until: float) -> None:
        """Wait until a time of `time.monotonic`, or until the server stops."""
        while not self._stopping() and (left_s := until - time.monotonic()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(min(LOOK_S, left_s))

    @contextlib.asynccontextmanager
    async def _parked(self) -> AsyncIterator[None]:
        """Hold all replicas between two batches, or those that finish their batch soon."""
        loop, go_on = asyncio.get_running_loop(), threading.Event()
        arrivals: list[asyncio.Future[None]] = []
        calls = []
        for replica in self._replicas:
            if replica.state is not ReplicaState.CLOSED:
                arrived: asyncio.Future[None] = loop.create_future()
                arrivals.append(arrived)
                calls.append(replica.call(partial(_park, loop, arrived, go_on)))
        parked = asyncio.gather(*calls, return_exceptions=True)  # some may be given up
        try:
            if arrivals:
                await asyncio.wait(arrivals, timeout=PARK_S)
            yield
        finally:
            go_on.set()
            if not arrivals or all(arrived.done() for arrived in arrivals):
                await parked


def _park(
    loop: asyncio.AbstractEventLoop, arrived: asyncio.Future[None], go_on: threading.Event
) -> None:
    """Wait between batches; runs in a replica's thread."""
    tell(loop, unless_done, arrived.set_result, arrived, None)
    go_on.wait(PARKED_S)


def _added(
    trace: ChromeTrace, recorded: Recorded, collected: Collected, paused: float, resumed: float
) -> int:
    """Add a part to the trace, in a thread; returns the number of its events."""
    events = trace.add(recorded(trace.began_ns), collected)
    trace.recorder_paused("collect", paused, resumed)
    return events


def _discard(_: object) -> None:
    """Drop a result that is no longer wanted."""
