"""Profiles: batches and operators of threads that were there before, and what ends a profile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from app.backends import profiler
from app.backends.profiler import BATCHES, DONE, FULL, STOPPING, Profiler, batch_range
from app.errors import ShuttingDown
from app.types import Profile

X = torch.randn(3, 3)


class Computing:
    """A thread that runs batches of one product until it is ended."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._work, name="replica-cpu#7")
        self.thread.start()

    def _work(self) -> None:
        while not self.ended.wait(0.0005):
            with batch_range("products", 2, 4):
                torch.mm(X, X)


@pytest.fixture(autouse=True)
def computing() -> Iterator[Computing]:
    made = Computing()
    yield made
    made.ended.set()
    made.thread.join()


def made(stopping: Callable[[], bool] = lambda: False, **more: Any) -> Profiler:
    return Profiler("here", lambda _: contextlib.nullcontext(), stopping, **more)


def events(profile: Profile) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(profile.content)["traceEvents"]
    return found


async def test_batches_enclose_operators_of_existing_threads(
    computing: Computing, capfd: pytest.CaptureFixture[str]
) -> None:
    with capture_logs():
        profile = await made().profile(0.5, compressed=False)
    assert profile.ended == DONE
    assert profile.seconds >= 0.5
    trace = json.loads(profile.content)
    assert trace["otherData"] == {"server": "here", "seconds": profile.seconds, "ended": DONE}
    mine = [each for each in trace["traceEvents"] if each["tid"] == computing.thread.native_id]
    batches = [each for each in mine if each["name"] == "batch of 4, products/2"]
    products = [each for each in mine if each["name"] == "aten::mm"]
    assert len(batches) > 10
    for each in products:
        ends = each["ts"] + each["dur"]
        assert any(b["ts"] <= each["ts"] and ends <= b["ts"] + b["dur"] for b in batches)
        assert "args" not in each
    assert {"replica-cpu#7"} == {e["args"]["name"] for e in mine if e["name"] == "thread_name"}
    assert not BATCHES.recorded
    assert not torch.autograd.profiler._is_profiler_enabled
    assert capfd.readouterr() == ("", "")


async def test_server_stop_ends_and_returns_the_profile() -> None:
    stopping = threading.Event()
    work = asyncio.create_task(made(stopping.is_set).profile(30, compressed=False))
    await asyncio.sleep(0.1)
    stopping.set()
    async with asyncio.timeout(30):
        profile = await work
    assert profile.ended == STOPPING
    assert "aten::mm" in [each["name"] for each in events(profile)]
    with pytest.raises(ShuttingDown):
        await made(stopping.is_set).profile(1, compressed=True)


async def test_full_trace_ends_the_profile() -> None:
    most = 400_000
    profile = await made(most_bytes=most).profile(30, compressed=False)
    assert profile.ended == FULL
    assert len(profile.content) <= most
    assert events(profile)


async def test_leaving_caller_ends_the_profile() -> None:
    work = asyncio.create_task(made().profile(30, compressed=True))
    await asyncio.sleep(0.1)
    work.cancel()
    with capture_logs() as logs, pytest.raises(asyncio.CancelledError):
        await work
    assert [line["event"] for line in logs] == ["profile_dropped"]
    assert not BATCHES.recorded
    assert not torch.autograd.profiler._is_profiler_enabled
    assert (await made().profile(0.1, compressed=True)).ended == DONE


async def test_recording_ends_between_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiler, "HELD_S", 0.2)
    inside, go_on = threading.Event(), threading.Event()

    def work() -> None:
        with batch_range("long", 1, 1):
            inside.set()
            go_on.wait(20)

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait(20)
    waiting = asyncio.create_task(BATCHES.hold())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    waiting.cancel()  # it is told so after the wait
    await asyncio.sleep(0.05)
    assert not waiting.done()
    assert await waiting  # HELD_S is over
    BATCHES.go_on()
    go_on.set()
    thread.join()
