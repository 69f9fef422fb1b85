"""A replica: everything that touches its backends happens in its one thread."""

from __future__ import annotations

import asyncio
import threading

import pytest

from app.backends.fake import FakeBackend
from app.engine.replicas import Replica, ReplicaState
from app.types import Device, ModelId

MODEL = ModelId("m", 1)


async def test_install_run_and_close_happen_in_one_thread_of_its_own() -> None:
    threads: set[int] = set()
    replica = Replica("r", Device("cpu"))
    replica.open()

    def make() -> FakeBackend:
        threads.add(threading.get_ident())
        return FakeBackend()

    def work(_: object) -> int:
        threads.add(threading.get_ident())
        return 42

    await replica.install(MODEL, make)
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    replica.start(MODEL, work, done.set_result)
    assert not replica.is_free(MODEL)
    assert await done == 42
    assert replica.is_free(MODEL)
    assert await replica.close(1.0)
    assert len(threads) == 1
    assert threads != {threading.get_ident()}
    assert replica.state is ReplicaState.CLOSED


async def test_a_failed_install_keeps_the_backend_that_was_there() -> None:
    replica = Replica("r", Device("cpu"))
    replica.open()
    first = FakeBackend()
    await replica.install(MODEL, lambda: first)

    def fails() -> FakeBackend:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await replica.install(MODEL, fails)
    assert replica.serves(MODEL)
    assert first.calls == []
    second = FakeBackend()
    await replica.install(MODEL, lambda: second)
    assert first.calls == ["close"]
    await replica.remove(MODEL)
    assert second.calls == ["close"]
    assert not replica.serves(MODEL)
    await replica.close(1.0)


async def test_close_gives_up_on_a_thread_that_is_stuck() -> None:
    replica = Replica("r", Device("cpu"))
    replica.open()
    await replica.install(MODEL, FakeBackend)
    stuck = threading.Event()
    replica.start(MODEL, lambda _: stuck.wait(), lambda _: None)
    assert not await replica.close(0.05)
    stuck.set()
