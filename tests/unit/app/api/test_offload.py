"""Work in threads: bounded, cancelled in any state, and its results come back to the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from app.api.offload import OffloadPool, pool_of
from app.errors import Overloaded
from tests.unit.app.engine.harness import turns, until


class Work:
    """Work that a test holds, and what came of it."""

    def __init__(self, *, held: bool = True) -> None:
        self.gate = threading.Event()
        self.begun = threading.Event()
        self.results: list[str | Exception] = []
        self.thread: threading.Thread | None = None
        if not held:
            self.gate.set()

    def __call__(self) -> str:
        self.thread = threading.current_thread()
        self.begun.set()
        self.gate.wait(10)
        return "done"


@pytest.fixture
async def pool() -> AsyncIterator[OffloadPool]:
    made = OffloadPool(1, max_tasks=3, max_bytes=100)
    yield made
    assert await made.close(5)
    assert (made.tasks, made.held) == (0, 0)


async def test_work_runs_in_a_thread_with_loop_callback(pool: OffloadPool) -> None:
    work, told_in = Work(held=False), []

    def done(result: str | Exception) -> None:
        told_in.append(threading.current_thread())
        work.results.append(result)

    pool.start(work, 10, done)
    assert (pool.tasks, pool.held) == (1, 10)
    await until(lambda: work.results == ["done"])
    assert told_in == [threading.current_thread()] != [work.thread]


async def test_thread_survives_a_panic_of_native_code(pool: OffloadPool) -> None:
    class Panic(BaseException):
        """As pyo3 raises it."""

    def fail() -> str:
        raise Panic

    results: list[object] = []
    pool.start(fail, 10, results.append)
    pool.start(lambda: "next", 10, results.append)
    await until(lambda: len(results) == 2)
    assert isinstance(results[0], RuntimeError)


async def test_work_that_would_start_late_is_rejected(pool: OffloadPool) -> None:
    first = Work()
    pool.start(first, 10, first.results.append)
    await asyncio.sleep(0.2)
    first.gate.set()
    await until(lambda: bool(first.results))
    held = Work()
    pool.start(held, 10, held.results.append)
    pool.check_room(10, within_s=60)
    with pytest.raises(Overloaded) as late:
        pool.check_room(10, within_s=0.001)
    assert 0.001 < late.value.retry_after_s < 60
    held.gate.set()


async def test_pool_limits_tasks_and_bytes(pool: OffloadPool) -> None:
    works = [Work(), Work(), Work()]
    pool.start(works[0], 60, works[0].results.append)
    with pytest.raises(Overloaded, match="60 bytes") as full:
        pool.start(Work(), 41, print)
    assert full.value.retry_after_s > 0
    for work in works[1:]:
        pool.start(work, 20, work.results.append)
    with pytest.raises(Overloaded, match="3 requests"):
        pool.check_room(0)
    for work in works:
        work.gate.set()
    await until(lambda: all(work.results for work in works))
    pool.check_room(1000)  # alone, anything gets in: a body has a limit of its own


async def test_cancelled_waiting_work_frees_its_slot(pool: OffloadPool) -> None:
    first, second = Work(), Work()
    pool.start(first, 10, first.results.append)
    waiting = pool.start(second, 20, second.results.append)
    waiting.cancel()
    waiting.cancel()
    assert (pool.tasks, pool.held) == (1, 10)
    first.gate.set()
    await until(lambda: first.results == ["done"])
    await turns()
    assert not second.begun.is_set()
    assert second.results == []


async def test_cancelled_running_work_keeps_its_slot(pool: OffloadPool) -> None:
    work = Work()
    task = pool.start(work, 10, work.results.append)
    await until(work.begun.is_set)
    task.cancel()
    assert (pool.tasks, pool.held) == (1, 10)
    work.gate.set()
    await until(lambda: pool.tasks == 0)
    assert work.results == []
    task.cancel()
    assert pool.tasks == 0


async def test_closing_waits_for_threads_within_a_timeout() -> None:
    pool, work = OffloadPool(2, 3, 100), Work()
    pool.start(work, 10, work.results.append)
    await until(work.begun.is_set)
    assert not await pool.close(0.02)
    work.gate.set()
    assert await pool.close(5)
    await turns()
    assert work.results == ["done"]


@pytest.mark.parametrize(("cores", "most"), [(1, 32), (2, 32), (4, 64), (64, 128)])
def test_a_pool_grows_with_the_cores(cores: int, most: int) -> None:
    assert pool_of(cores, 100).max_tasks == most


async def test_thread_continues_after_an_error(pool: OffloadPool) -> None:
    results: list[object] = []

    def fail() -> str:
        raise RecursionError("too deep")

    pool.start(fail, 10, results.append)
    pool.start(lambda: "next", 10, results.append)
    await until(lambda: len(results) == 2)
    assert "RecursionError" in str(results[0])
    assert results[1] == "next"
