"""A replica: everything that touches its backends happens in its one thread."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable

import pytest

from app.backends.base import Backend, Between
from app.backends.fake import FakeBackend
from app.engine.replica import Replica, ReplicaState
from app.errors import ReplicaError, ReplicaHangs
from app.types import Device, ModelId, Serving
from tests.unit.app.engine.harness import until

MODEL = ModelId("m", 1)


class OnDevice(FakeBackend):
    """It is proved in the replica's thread; others: see test_proving.py."""

    def serving(self) -> Serving:
        return Serving((), launches=True)


async def test_everything_but_loading_uses_one_thread() -> None:
    threads: set[int] = set()
    loaders: set[int] = set()
    replica = Replica("r", Device("cpu"), lambda: threads.add(threading.get_ident()))
    replica.open()

    def load() -> FakeBackend:
        loaders.add(threading.get_ident())
        return OnDevice()

    def prove(_: object, __: object) -> None:
        threads.add(threading.get_ident())

    def work(_: object) -> int:
        threads.add(threading.get_ident())
        return 42

    await replica.install(MODEL, load, prove)
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    replica.start(MODEL, work, done.set_result, _unexpected)
    assert not replica.is_free(MODEL)
    assert await done == 42
    assert replica.is_free(MODEL)
    assert await replica.close(1.0)
    assert len(threads) == 1
    assert threads != {threading.get_ident()}
    assert not loaders & {threading.get_ident(), *threads}
    assert replica.state is ReplicaState.CLOSED


async def test_failed_install_keeps_the_previous_backend() -> None:
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


async def test_close_gives_up_on_a_stuck_thread() -> None:
    replica = Replica("r", Device("cpu"))
    replica.open()
    await replica.install(MODEL, FakeBackend)
    stuck = threading.Event()
    replica.start(MODEL, lambda _: stuck.wait(), lambda _: None, lambda _: False)
    assert not await replica.close(0.05)
    stuck.set()


async def test_exception_in_work_becomes_a_result() -> None:
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


async def test_result_for_a_blocking_loop_is_immediate() -> None:
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


async def test_late_result_for_a_blocking_loop_comes_once() -> None:
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


async def test_result_at_the_time_limit_comes_once() -> None:
    replica = Replica("r", Device("cpu"))
    replica.open()
    await replica.install(MODEL, FakeBackend)
    for number in range(200):
        results: list[int] = []
        took_s = (number % 10) * 0.00002

        def work(_: object, number: int = number, took_s: float = took_s) -> int:
            end = time.perf_counter() + took_s
            while time.perf_counter() < end:
                pass
            return number

        replica.start(MODEL, work, results.append, _unexpected, block_s=0.0001)
        async with asyncio.timeout(30.0):
            while not results:
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert results == [number]
    assert await replica.close(1.0)


async def test_closing_also_closes_a_backend_being_loaded() -> None:
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
    await until(lambda: backend.calls == ["close"])


def _unexpected(error: BaseException) -> int:
    raise error


def _raises(error: BaseException) -> bool:
    raise error


async def test_batches_run_between_parts_of_a_load() -> None:
    replica = Replica("r", Device("cpu"))
    replica.open()
    await replica.install(MODEL, FakeBackend)
    order: list[str] = []
    begun, go_on = threading.Event(), threading.Event()

    def prove(_: object, between: Callable[[], None]) -> None:
        order.append("first part")
        begun.set()
        go_on.wait(30.0)
        between()
        order.append("second part")

    installing = asyncio.create_task(replica.install(ModelId("m", 2), OnDevice, prove))
    await asyncio.to_thread(begun.wait)
    assert replica.runs_a_load
    calling = asyncio.create_task(replica.call(lambda: order.append("call")))
    await asyncio.sleep(0)
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def work(_: object) -> int:
        order.append("batch")
        return 1

    replica.start(MODEL, work, done.set_result, _unexpected)
    go_on.set()
    await done
    await installing
    await calling
    assert order == ["first part", "batch", "second part", "call"]
    assert await replica.close(1.0)


class TestLostThread:
    @pytest.fixture
    async def replica(self) -> Replica:
        replica = Replica("r", Device("cpu"))
        replica.open()
        self.backend, self.go_on = FakeBackend(), threading.Event()
        await replica.install(MODEL, lambda: self.backend)
        return replica

    async def stuck(self, replica: Replica) -> asyncio.Future[str]:
        """It runs a batch that does not come back before it may."""
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        begun = threading.Event()

        def work(_: object) -> str:
            begun.set()
            self.go_on.wait(30.0)
            return "late"

        replica.start(MODEL, work, done.set_result, repr)
        await asyncio.to_thread(begun.wait)
        return done

    async def test_batch_fails_once_and_its_late_result_is_dropped(self, replica: Replica) -> None:
        done = await self.stuck(replica)
        assert replica.give_up_thread(ReplicaHangs("it hangs"))
        assert await done == "ReplicaHangs('it hangs')"
        assert not replica.busy
        assert (replica.state, replica.models) == (ReplicaState.SICK, {})
        assert replica.lost_threads == 1
        self.go_on.set()
        await until(lambda: replica.lost_threads == 0)  # done is settled: twice would be an error
        assert self.backend.calls == ["close"]
        assert await replica.close(1.0)

    async def test_replica_continues_with_a_new_thread(self, replica: Replica) -> None:
        await self.stuck(replica)
        replica.give_up_thread(ReplicaHangs("it hangs"))
        await replica.install(MODEL, FakeBackend)
        replica.state = ReplicaState.READY
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        replica.start(MODEL, lambda _: "fine", done.set_result, repr)
        assert await done == "fine"
        self.go_on.set()
        assert await replica.close(1.0)

    async def test_waiting_calls_fail(self, replica: Replica) -> None:
        await self.stuck(replica)
        waiting = [
            asyncio.create_task(replica.call(lambda: None)),
            asyncio.create_task(replica.call(lambda: None)),
        ]
        await until(lambda: replica.runs_a_load)
        removing = asyncio.create_task(replica.remove(MODEL))
        await asyncio.sleep(0)
        replica.give_up_thread(ReplicaHangs("it hangs"))
        for each in waiting:
            with pytest.raises(ReplicaError) as failed:
                await each
            assert not isinstance(failed.value, ReplicaHangs)  # it was the batch
        await removing  # that the model is gone is what it wanted
        self.go_on.set()
        assert await replica.close(1.0)

    @pytest.mark.parametrize("who", ["itself", "a batch between its steps"])
    async def test_proof_is_blamed_only_for_its_steps(self, replica: Replica, who: str) -> None:
        proving, begun = threading.Event(), threading.Event()

        def hang(_: object) -> str:
            begun.set()
            self.go_on.wait(30.0)
            return "late"

        def prove(backend: Backend, between: Between) -> None:
            proving.set()
            if who == "itself":
                hang(backend)
            while not begun.is_set():
                between()

        proof = asyncio.create_task(replica.install(ModelId("m", 2), OnDevice, prove))
        await asyncio.to_thread(proving.wait)
        if who != "itself":
            replica.start(MODEL, hang, lambda _: None, repr)
        await asyncio.to_thread(begun.wait)
        replica.give_up_thread(ReplicaHangs("it hangs"))
        with pytest.raises(ReplicaError) as failed:
            await proof
        assert isinstance(failed.value, ReplicaHangs) is (who == "itself")
        self.go_on.set()
        assert await replica.close(1.0)

    async def test_steps_of_new_and_hanging_thread_differ(self, replica: Replica) -> None:
        await self.stuck(replica)
        hanging = replica.step
        replica.give_up_thread(ReplicaHangs("it hangs"))
        steps = [await replica.call(lambda: replica.step) for _ in range(3)]
        assert None not in steps
        assert len({hanging, *steps}) == 4
        self.go_on.set()
        assert await replica.close(1.0)


async def test_ended_batch_is_freed_without_gc() -> None:
    """At once: thousands of batches would else wait for the garbage collector, with their items."""
    replica = Replica("r", Device("cpu"))
    replica.open()
    await replica.install(MODEL, FakeBackend)

    def run() -> weakref.ref[Callable[[int], None]]:
        def done(_: int) -> None:
            """Holds its items, as what the engine gives does."""

        replica.start(MODEL, lambda _: 42, done, _unexpected)
        return weakref.ref(done)

    gc.collect()
    gc.disable()
    try:
        ended = [run() for _ in range(3)]
        await until(lambda: not replica.busy)
        await until(lambda: all(each() is None for each in ended))
    finally:
        gc.enable()
    assert await replica.close(1.0)
