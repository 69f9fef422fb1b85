"""A wave of requests that is read over several turns of the event loop becomes one batch."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from app.backends.base import Backend
from app.backends.fake import FakeBackend
from app.engine.batch_policy import BatchLimits
from app.engine.clock import ManualClock
from app.engine.engine import Engine, EngineConfig
from app.engine.replica import Replica
from app.engine.submission import Submission
from app.metrics import Metrics
from app.types import Device
from tests.unit.app.engine.harness import CONTRACT, FAR, MODEL, Rig, item, turns, until, values

GATHER_S = 0.005


@contextlib.asynccontextmanager
async def gathering(
    limits: BatchLimits = BatchLimits(8, 0.0, GATHER_S),  # noqa: B008  # frozen
    replicas: int = 1,
) -> AsyncIterator[Rig]:
    """An engine that gathers, over fakes, with a clock that is turned by hand."""
    clock, metrics = ManualClock(), Metrics()
    made = [Replica(f"fake#{index}", Device("cpu")) for index in range(replicas)]
    engine = Engine(made, clock, metrics, EngineConfig(limits, 1000, 0, None))
    backends = [FakeBackend() for _ in made]
    for replica, backend in zip(made, backends, strict=True):
        replica.open()

        def give(backend: Backend = backend) -> Backend:
            return backend

        await replica.install(MODEL, give)
    engine.publish(MODEL, "digest:fake", CONTRACT)
    try:
        yield Rig(engine, clock, metrics, backends, made)
    finally:
        for backend in backends:
            backend.gate.set()
        for replica in made:
            await replica.close(5.0)


def submit(r: Rig, *numbers: float) -> Submission:
    """As the reader of a socket does: at once, without a task."""
    deadline = r.clock.now() + FAR
    return r.engine.submit(MODEL, [item(number) for number in numbers], deadline)


async def wave(r: Rig, *numbers: float, turn_s: float = 0.0) -> list[Submission]:
    """One item in each turn of the loop, which takes that long."""
    submissions = []
    for number in numbers:
        submissions.append(submit(r, number))
        await asyncio.sleep(0)
        r.clock.advance(turn_s)
    return submissions


async def check(submissions: list[Submission], *numbers: float) -> None:
    got = [values(await each.answer()) for each in submissions]
    assert got == [[2 * number] for number in numbers]


async def test_several_turns_make_one_batch() -> None:
    async with gathering() as r:
        await check(await wave(r, 1, 2, 3, 4, 5), 1, 2, 3, 4, 5)
        assert r.backend.batches == [[1, 2, 3, 4, 5]]


async def test_single_request_waits_only_one_turn() -> None:
    async with gathering() as r:
        r.backend.gate.clear()
        submission = submit(r, 1)
        await turns(4)
        await until(lambda: r.backend.batches == [[1]])  # the clock stood still meanwhile
        r.backend.gate.set()
        await check([submission], 1)


async def test_a_full_batch_starts_at_once() -> None:
    async with gathering(BatchLimits(3, 0.0, GATHER_S)) as r:
        r.backend.gate.clear()
        submissions = await wave(r, 1, 2, 3, 4)
        await until(lambda: r.backend.batches == [[1, 2, 3]])
        r.backend.gate.set()
        await check(submissions, 1, 2, 3, 4)
        assert r.backend.batches == [[1, 2, 3], [4]]


async def test_gathering_ends_despite_new_arrivals() -> None:
    async with gathering(BatchLimits(1000, 0.0, GATHER_S)) as r:
        r.backend.gate.clear()
        numbers = list(range(1, 31))
        submissions = await wave(r, *numbers, turn_s=0.001)
        await until(lambda: len(r.backend.batches) == 1)
        # Looked at 0, 1, 2, 3, 4 and 5 ms after the first look.
        assert 5 <= len(r.backend.batches[0]) <= 7
        r.backend.gate.set()
        await check(submissions, *numbers)
        assert len(r.backend.batches) == 2


async def test_wave_grows_after_the_replica_is_free() -> None:
    async with gathering() as r:
        r.backend.gate.clear()
        busy = submit(r, 1)
        await until(lambda: r.backend.batches == [[1]])
        before = await wave(r, 2, 3, turn_s=1.0)
        r.backend.gate.set()
        await busy.settled()  # and in this very turn more is read
        after = await wave(r, 4, 5)
        await check([*before, *after], 2, 3, 4, 5)
        assert r.backend.batches == [[1], [2, 3, 4, 5]]


async def test_idle_replicas_share_a_wave() -> None:
    async with gathering(replicas=2) as r:
        for backend in r.backends:
            backend.gate.clear()
        submissions = await wave(r, 1, 2, 3, 4)
        await until(lambda: all(backend.batches for backend in r.backends))
        for backend in r.backends:
            backend.gate.set()
        await check(submissions, 1, 2, 3, 4)
        assert sorted(r.backends[0].batches + r.backends[1].batches) == [[1, 2], [3, 4]]


@pytest.mark.parametrize("turns_between", [1, 5])
async def test_abandoned_wave_does_not_shorten_the_next(turns_between: int) -> None:
    async with gathering() as r:
        gone = submit(r, 1)
        await asyncio.sleep(0)  # it is waited for company now
        gone.abandon()
        await turns(turns_between)
        r.clock.advance(1.0)
        await check(await wave(r, 2, 3, 4), 2, 3, 4)
        assert r.backend.batches == [[2, 3, 4]]


async def test_idle_engine_does_not_poll() -> None:
    async with gathering() as r:
        await check(await wave(r, 1, 2), 1, 2)
        await turns()  # the last one, in which the end of the batch is noticed
        looks = 0
        look = r.clock.now

        def counted() -> float:
            nonlocal looks
            looks += 1
            return look()

        r.clock.now = counted  # type: ignore[method-assign]
        await turns(50)
        assert looks == 0


async def test_arrivals_while_busy_form_one_batch() -> None:
    async with gathering() as r:
        r.backend.gate.clear()
        busy = submit(r, 1)
        await until(lambda: r.backend.batches == [[1]])
        submissions = await wave(r, 2, 3, 4, turn_s=1.0)
        r.backend.gate.set()
        await check([busy, *submissions], 1, 2, 3, 4)
        assert r.backend.batches == [[1], [2, 3, 4]]
