"""Records what this process does for some seconds: batches, requests and torch's operators."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import structlog

from app.engine.execution.handover import in_thread, tell, unless_done
from app.engine.execution.replica import Replica, ReplicaState
from app.errors import AlreadyRecording, ShuttingDown
from app.telemetry.chrome import ChromeTrace, Heard, Listener
from app.telemetry.tracing import Tracing

LOG = structlog.get_logger(__name__)

MOST_BYTES = 64 << 20  # of a trace, before it is compressed
# A part has about so many events, for which torch holds the GIL for five milliseconds twice.
PART_EVENTS = 4000
FIRST_PART_S, LEAST_PART_S, LONGEST_PART_S = 0.1, 0.02, 1.0
LOOK_S = 0.05  # seconds between two looks whether the server stops
PARK_S = 0.05  # for replicas to end their batches; a longer forward has few operators
PARKED_S = 1.0  # at most, for a replica: less than the watchdog takes for a hang
DONE, FULL, STOPPING = "the time was over", "the trace was full", "the server is shutting down"


class Recorder(Protocol):
    """Records operators; `app/backends/profiler.py` says what its methods do."""

    def start(self) -> None:
        """Begin."""

    def next(self) -> Callable[[int], list[dict[str, Any]]]:
        """End a part and begin the next one."""

    def stop(self) -> Callable[[int], list[dict[str, Any]]]:
        """End the last part."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A finished trace.

    Attributes:
        content: in Chrome's format, maybe compressed.
        seconds: that were recorded.
        ended: why it ended.
    """

    content: bytes
    seconds: float
    ended: str


class Profiler:
    """Makes one trace at a time.

    Args:
        recorder: records operators.
        tracing: tells of requests and batches.
        replicas: whose threads run operators.
        stopping: whether the server stops.
        name: of this process in traces.
        most_bytes: of a trace.
    """

    def __init__(
        self,
        recorder: Recorder,
        tracing: Tracing,
        replicas: Sequence[Replica],
        stopping: Callable[[], bool],
        name: str,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._recorder = recorder
        self._tracing = tracing
        self._replicas = replicas
        self._stopping = stopping
        self._name = name
        self._most_bytes = most_bytes
        self._ends_at: float | None = None  # of the running one, on time.monotonic

    async def profile(self, seconds: float, *, compressed: bool) -> Profile:
        """Record for this time, or until the server stops or the trace is full.

        Raises:
            AlreadyRecording: another one is running.
            ShuttingDown: the server stops.
        """
        if self._stopping():
            raise ShuttingDown("the server is shutting down; try another one")
        now = time.monotonic()
        if self._ends_at is not None:
            raise AlreadyRecording(
                "this process is being profiled already; try again when that has ended",
                retry_after_s=max(1.0, self._ends_at - now),
            )
        self._ends_at = now + seconds
        LOG.info("profiling", seconds=seconds)
        try:
            trace = ChromeTrace(self._name, self._most_bytes, compressed=compressed)
            ended = await self._record(trace, self._ends_at)
            took_s = round(time.monotonic() - now, 3)
            about = {"server": self._name, "seconds": took_s, "ended": ended}
            content = await in_thread(partial(trace.end, about), _discard)
        finally:
            self._ends_at = None
        LOG.info("profiled", seconds=took_s, ended=ended, bytes=trace.nbytes)
        return Profile(content, took_s, ended)

    async def _record(self, trace: ChromeTrace, ends_at: float) -> str:
        """Record, part by part; returns why it ended."""
        listener = Listener()
        part_s, since = FIRST_PART_S, time.monotonic()
        self._recorder.start()
        self._tracing.add(listener)
        recording = True
        try:
            while recording:
                await self._wait(min(since + part_s, ends_at))
                over = self._stopping() or time.monotonic() >= ends_at
                async with self._parked():
                    stood_from = time.perf_counter()
                    recording = not over
                    recorded = self._recorder.stop() if over else self._recorder.next()
                    stood_to = time.perf_counter()
                now = time.monotonic()
                took_s, since = now - since, now
                work = partial(_added, trace, recorded, listener.take(), stood_from, stood_to)
                events = await in_thread(work, _discard)
                if trace.is_full:
                    return FULL
                wanted_s = took_s * PART_EVENTS / max(events, 1)
                part_s = max(LEAST_PART_S, min(LONGEST_PART_S, 2 * part_s, wanted_s))
        finally:
            self._tracing.remove(listener)
            if recording:
                async with self._parked():
                    self._recorder.stop()
        return STOPPING if self._stopping() else DONE

    async def _wait(self, until: float) -> None:
        """Wait until a moment of time.monotonic, or until the server stops."""
        while not self._stopping() and (left_s := until - time.monotonic()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(min(LOOK_S, left_s))

    @contextlib.asynccontextmanager
    async def _parked(self) -> AsyncIterator[None]:
        """Between batches of all replicas, or of those that get there soon."""
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
    """In a replica's thread."""
    tell(loop, unless_done, arrived.set_result, arrived, None)
    go_on.wait(PARKED_S)


def _added(
    trace: ChromeTrace,
    recorded: Callable[[int], list[dict[str, Any]]],
    heard: Heard,
    stood_from: float,
    stood_to: float,
) -> int:
    """In a thread: add a part to the trace; returns the number of its operators."""
    events = recorded(trace.began_ns)
    trace.add(events, heard)
    trace.stood_still(stood_from, stood_to)
    return len(events)


def _discard(_: object) -> None:
    """Drop what nobody waits for any more."""
