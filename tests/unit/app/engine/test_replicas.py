"""A replica: everything that touches its backends happens in its one thread."""

from __future__ import annotations

import asyncio
import threading
import time

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
    replica.start(MODEL, work, done.set_result, _unexpected)
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
    replica.start(MODEL, lambda _: stuck.wait(), lambda _: None, lambda _: False)
    assert not await replica.close(0.05)
    stuck.set()


async def test_work_that_raises_becomes_a_result_and_the_thread_lives_on() -> None:
    replica = Replica("r", Device("cpu"))
    replica.open()
    await replica.install(MODEL, FakeBackend)
    for error in (MemoryError("no room"), SystemExit(1)):
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def work(_: object, error: BaseException = error) -> str:
            raise error

        replica.start(MODEL, work, done.set_result, repr)
        assert await done == repr(error)
        assert replica.is_free(MODEL)
    assert await replica.close(1.0)


async def test_a_result_that_comes_while_the_loop_blocks_is_there_at_once() -> None:
    replica = Replica("r", Device("cpu"))
    replica.open()
    await replica.install(MODEL, FakeBackend)
    results: list[str] = []

    def fails(_: object) -> str:
        raise MemoryError("no room")

    replica.start(MODEL, lambda _: "fine", results.append, repr, block_s=30.0)
    assert results == ["fine"]
    assert replica.is_free(MODEL)
    replica.start(MODEL, fails, results.append, repr, block_s=30.0)
    assert results == ["fine", "MemoryError('no room')"]
    await asyncio.sleep(0.01)
    assert len(results) == 2
    assert await replica.close(1.0)


async def test_a_result_that_comes_too_late_for_a_loop_that_blocks_comes_once_all_the_same() -> (
    None
):
    replica = Replica("r", Device("cpu"))
    replica.open()
    await replica.install(MODEL, FakeBackend)
    go_on = threading.Event()
    done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    replica.start(MODEL, lambda _: go_on.wait(30.0), done.set_result, _raises, block_s=0.001)
    assert not done.done()
    assert not replica.is_free(MODEL)
    go_on.set()
    assert await done
    assert replica.is_free(MODEL)
    assert await replica.close(1.0)


async def test_a_result_that_comes_as_the_patience_ends_comes_once() -> None:
    replica = Replica("r", Device("cpu"))
    replica.open()
    await replica.install(MODEL, FakeBackend)
    at_once = 0
    for number in range(500):
        results: list[int] = []
        took_s = (number % 10) * 0.00002

        def work(_: object, number: int = number, took_s: float = took_s) -> int:
            end = time.perf_counter() + took_s
            while time.perf_counter() < end:
                pass
            return number

        replica.start(MODEL, work, results.append, _unexpected, block_s=0.0001)
        at_once += len(results)
        async with asyncio.timeout(30.0):
            while not results:
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert results == [number]
    assert at_once > 0
    assert await replica.close(1.0)


async def test_closing_while_a_backend_is_made_closes_that_too() -> None:
    replica = Replica("r", Device("cpu"))
    replica.open()
    backend, begun, go_on = FakeBackend(), threading.Event(), threading.Event()

    def make() -> FakeBackend:
        begun.set()
        go_on.wait()
        return backend

    installing = asyncio.create_task(replica.install(MODEL, make))
    await asyncio.to_thread(begun.wait)
    closing = asyncio.create_task(replica.close(5.0))
    await asyncio.sleep(0)
    installing.cancel()
    go_on.set()
    assert await closing
    assert backend.calls == ["close"]


def _unexpected(error: BaseException) -> int:
    raise error


def _raises(error: BaseException) -> bool:
    raise error
