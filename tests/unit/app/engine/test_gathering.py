"""A wave of requests that is read over several turns of the event loop becomes one batch."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager

import pytest

from app.engine.submission import Submission
from tests.unit.app.engine.harness import Rig, rig, turns, until, values

GATHER_S = 0.005


def gathering(max_batch_size: int = 8, replicas: int = 1) -> AbstractAsyncContextManager[Rig]:
    """An engine that gathers."""
    return rig(scripts=[None] * replicas, max_batch_size=max_batch_size, gather_s=GATHER_S)


async def wave(r: Rig, *numbers: float, turn_s: float = 0.0) -> list[Submission]:
    """One item in each turn of the loop, which takes that long."""
    submissions = []
    for number in numbers:
        submissions.append(r.submit(number))
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
        submission = r.submit(1)
        await turns(4)
        await until(lambda: r.backend.batches == [[1]])  # the clock stood still meanwhile
        r.backend.gate.set()
        await check([submission], 1)


async def test_gathering_ends_despite_new_arrivals() -> None:
    async with gathering(1000) as r:
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
        busy = r.submit(1)
        await until(lambda: r.backend.batches == [[1]])
        before = await wave(r, 2, 3, turn_s=1.0)
        r.backend.gate.set()
        await busy.settled()  # and in this very turn more is read
        after = await wave(r, 4, 5)
        await check([*before, *after], 2, 3, 4, 5)
        assert r.backend.batches == [[1], [2, 3, 4, 5]]


@pytest.mark.parametrize("turns_between", [1, 5])
async def test_abandoned_wave_does_not_shorten_the_next(turns_between: int) -> None:
    async with gathering() as r:
        gone = r.submit(1)
        await asyncio.sleep(0)  # it is waited for company now
        gone.abandon()
        await turns(turns_between)
        r.clock.advance(1.0)
        await check(await wave(r, 2, 3, 4), 2, 3, 4)
        assert r.backend.batches == [[2, 3, 4]]


async def test_arrivals_while_busy_form_one_batch() -> None:
    async with gathering() as r:
        r.backend.gate.clear()
        busy = r.submit(1)
        await until(lambda: r.backend.batches == [[1]])
        submissions = await wave(r, 2, 3, 4, turn_s=1.0)
        r.backend.gate.set()
        await check([busy, *submissions], 1, 2, 3, 4)
        assert r.backend.batches == [[1], [2, 3, 4]]
