"""One profile: its parts, what ends it, and that it leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.engine.replica import Replica
from app.errors import AlreadyRecording, ShuttingDown
from app.serving.profiling import DONE, FULL, MOST_BYTES, STOPPING, Process, Profiler
from app.serving.turn import Turn
from app.telemetry.chrome import END_BYTES, MOST_EVENTS
from app.telemetry.tracing import RequestTrace, Tracing
from app.types import Device

Part = Callable[[int], list[dict[str, Any]]]


class Recorder:
    """Makes `events` operators for each part.

    Attributes:
        begun: recordings that were begun.
        running: whether one is.
        parked: for each end of a part whether the replica was parked.
    """

    def __init__(self, events: int = 0) -> None:
        self.begun = 0
        self.running = False
        self.parked: list[bool] = []
        self.replica: Replica | None = None
        self._events = events

    def start(self) -> None:
        assert not self.running
        self.begun += 1
        self.running = True

    def next(self) -> Part:
        part = self.stop()
        self.running = True
        return part

    def stop(self) -> Part:
        assert self.running
        self.running = False
        assert self.replica is not None
        self.parked.append(self.replica.is_called)
        return lambda since_ns: [dict(OPERATOR) for _ in range(self._events)]


OPERATOR = {"ph": "X", "name": "aten::add", "pid": 1, "tid": 2, "ts": 0, "dur": 1}


class Setup:
    """A profiler, and what it works with."""

    def __init__(self, events: int = 0, most_bytes: int = MOST_BYTES) -> None:
        self.recorder, self.tracing = Recorder(events), Tracing()
        self.replica = Replica("cpu#0", Device("cpu"))
        self.recorder.replica = self.replica
        self.stopping = False
        self.profiler = Profiler(
            *(self.recorder, self.tracing, [self.replica], lambda: self.stopping),
            Process("here", Turn(None)),
            most_bytes=most_bytes,
        )

    @property
    def is_clean(self) -> bool:
        return not (self.recorder.running or self.tracing.enabled or self.replica.is_called)


@pytest.fixture
async def made() -> AsyncIterator[Callable[..., Setup]]:
    replicas = []

    def make(**options: int) -> Setup:
        setup = Setup(**options)
        setup.replica.open()
        replicas.append(setup.replica)
        return setup

    yield make
    for replica in replicas:
        await replica.close(5.0)


async def test_profile_is_recorded_in_parts(made: Callable[..., Setup]) -> None:
    setup = made(events=10)
    profile = await setup.profiler.profile(0.3, compressed=False)
    assert profile.ended == DONE
    assert 0.3 <= profile.seconds < 5
    assert setup.is_clean
    assert setup.recorder.begun == 1
    assert len(setup.recorder.parked) > 1
    assert all(setup.recorder.parked)
    trace = json.loads(profile.content)
    assert trace["otherData"] == {"server": "here", "seconds": profile.seconds, "ended": DONE}
    names = [event["name"] for event in trace["traceEvents"]]
    assert names.count("aten::add") == 10 * len(setup.recorder.parked)
    assert names.count("recording: collect") == len(setup.recorder.parked)


async def test_many_operators_shorten_the_parts(made: Callable[..., Setup]) -> None:
    few, many = made(events=1), made(events=20_000)
    await few.profiler.profile(0.8, compressed=True)
    await many.profiler.profile(0.8, compressed=True)
    assert len(many.recorder.parked) > len(few.recorder.parked)


async def test_profile_contains_requests_of_its_time(made: Callable[..., Setup]) -> None:
    setup = made()
    profiling = asyncio.create_task(setup.profiler.profile(0.2, compressed=False))
    await asyncio.sleep(0.05)
    trace = RequestTrace("GET", "/models", "/models", b"id", time.perf_counter())
    assert setup.tracing.may_follow([], {})
    followed = setup.tracing.begin(trace, [], {})
    assert followed is not None
    setup.tracing.end(followed, 200, "ok")
    events = json.loads((await profiling).content)["traceEvents"]
    assert [event["ph"] for event in events if event["name"] == "GET /models"] == ["b", "e"]


async def test_only_one_profile_at_a_time(made: Callable[..., Setup]) -> None:
    setup = made()
    first = asyncio.create_task(setup.profiler.profile(0.2, compressed=True))
    await asyncio.sleep(0.05)
    with pytest.raises(AlreadyRecording, match="profiled already") as caught:
        await setup.profiler.profile(5.0, compressed=True)
    assert caught.value.retry_after_s == 1.0
    assert (await first).ended == DONE
    assert (await setup.profiler.profile(0.1, compressed=True)).ended == DONE


async def test_retry_after_is_the_remaining_time(made: Callable[..., Setup]) -> None:
    setup = made()
    first = asyncio.create_task(setup.profiler.profile(30, compressed=True))
    await asyncio.sleep(0.05)
    with pytest.raises(AlreadyRecording) as caught:
        await setup.profiler.profile(5.0, compressed=True)
    assert 28 < caught.value.retry_after_s < 30
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_server_stop_ends_and_returns_the_profile(made: Callable[..., Setup]) -> None:
    setup = made(events=3)
    profiling = asyncio.create_task(setup.profiler.profile(30, compressed=False))
    await asyncio.sleep(0.15)
    setup.stopping = True
    async with asyncio.timeout(2):
        profile = await profiling
    assert profile.ended == STOPPING
    assert b"aten::add" in profile.content
    assert setup.is_clean
    with pytest.raises(ShuttingDown):
        await setup.profiler.profile(1, compressed=True)


async def test_full_trace_ends_the_profile(made: Callable[..., Setup]) -> None:
    most = END_BYTES + 100_000
    setup = made(events=500, most_bytes=most)
    profile = await setup.profiler.profile(30, compressed=False)
    assert profile.ended == FULL
    assert profile.seconds < 10
    assert END_BYTES < len(profile.content) <= most
    last = json.loads(profile.content)["traceEvents"][-1]
    assert last["name"] == f"end: {FULL}"
    assert setup.is_clean


async def test_leaving_caller_ends_the_profile(made: Callable[..., Setup]) -> None:
    setup = made()
    profiling = asyncio.create_task(setup.profiler.profile(30, compressed=True))
    await asyncio.sleep(0.15)
    assert setup.recorder.running
    assert setup.tracing.enabled
    profiling.cancel()
    with capture_logs() as logs, pytest.raises(asyncio.CancelledError):
        await profiling
    assert [line["event"] for line in logs] == ["profile_dropped"]
    assert setup.is_clean
    assert (await setup.profiler.profile(0.1, compressed=True)).ended == DONE


async def test_profile_does_not_wait_for_long_batches(made: Callable[..., Setup]) -> None:
    setup, go_on = made(), threading.Event()
    busy = asyncio.create_task(setup.replica.call(lambda: go_on.wait(20)))
    async with asyncio.timeout(5):
        assert (await setup.profiler.profile(0.1, compressed=True)).ended == DONE
    assert not setup.recorder.running
    go_on.set()
    assert await busy
    async with asyncio.timeout(5):  # what was left in its queue is over at once
        await setup.replica.call(lambda: None)


async def test_unreadable_part_ends_the_profile(made: Callable[..., Setup]) -> None:
    setup = made()

    def broken() -> Part:
        def read(since_ns: int) -> list[dict[str, Any]]:
            raise OSError("no space left")

        setup.recorder.parked.append(True)
        return read

    setup.recorder.next = broken  # type: ignore[method-assign]
    with pytest.raises(OSError, match="no space left"):
        await setup.profiler.profile(30, compressed=True)
    assert setup.is_clean


async def test_second_cancellation_ends_the_profile(made: Callable[..., Setup]) -> None:
    setup, go_on = made(), threading.Event()
    profiling = asyncio.create_task(setup.profiler.profile(30, compressed=True))
    await asyncio.sleep(0.01)
    busy = asyncio.create_task(setup.replica.call(lambda: go_on.wait(20)))
    profiling.cancel()
    await asyncio.sleep(0.01)
    assert setup.recorder.running  # it waits for the replica
    profiling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await profiling
    assert [setup.recorder.running, setup.tracing.enabled] == [False, False]
    go_on.set()
    assert await busy


async def test_part_with_too_many_events_ends_profile(made: Callable[..., Setup]) -> None:
    setup = made(events=MOST_EVENTS + 1)
    profile = await setup.profiler.profile(30, compressed=True)
    assert profile.ended == FULL
    assert profile.seconds < 20
    assert setup.is_clean


async def test_slow_reading_pauses_the_recording(made: Callable[..., Setup]) -> None:
    setup, read = made(events=1), threading.Event()
    begin_next = setup.recorder.next

    def slow() -> Part:
        part = begin_next()

        def reading(since_ns: int) -> list[dict[str, Any]]:
            read.wait(20)
            return part(since_ns)

        return reading

    setup.recorder.next = slow  # type: ignore[method-assign]
    profiling = asyncio.create_task(setup.profiler.profile(1.5, compressed=False))
    async with asyncio.timeout(5):
        while setup.recorder.running or not setup.recorder.begun:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert (setup.recorder.begun, setup.recorder.running) == (1, False)
    read.set()
    profile = await profiling
    assert profile.ended == DONE
    assert setup.recorder.begun == 2
    events = json.loads(profile.content)["traceEvents"]
    names = [event["name"] for event in events]
    assert names.count("aten::add") == len(setup.recorder.parked)  # each part was read
    (gap,) = [event for event in events if event["name"] == "recording: gap"]
    assert gap["dur"] > 100_000
    assert setup.is_clean
