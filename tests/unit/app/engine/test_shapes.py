"""Items of several shapes share no batches, and are not let in as if they did."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

import pytest

from app.engine.submission import Submission
from app.errors import Overloaded
from tests.unit.app.engine.harness import MODEL, Rig, item, rig, turns, until

SIZES = (1, 2, 4, 8)
FLAT = dict.fromkeys(SIZES, 0.010)  # a batch of one takes as long as one of eight


@contextlib.asynccontextmanager
async def busy(batch_s: Mapping[int, float]) -> AsyncIterator[Rig]:
    """The only replica runs a batch of 10 ms; when the test is done it may end."""
    async with rig(batch_s=batch_s, max_batch_size=8, queue_limit=1000) as r:
        r.backend.gate.clear()
        running = r.start(0)
        await until(lambda: len(r.backend.batches) == 1)
        yield r
        r.backend.gate.set()
        await running


def let_in(r: Rig, shapes: range, within: float) -> list[Submission]:
    """Of one request for each shape those that are not refused."""
    accepted = []
    for size in shapes:
        with contextlib.suppress(Overloaded):
            made = item(1, size=size)
            accepted.append(r.engine.submit(MODEL, [made], r.clock.now() + within))
    return accepted


async def test_shapes_are_admitted_as_separate_batches() -> None:
    async with busy(FLAT) as r:
        accepted = let_in(r, range(1, 201), within=1.0)
        assert 90 <= len(accepted) <= 96  # after 10 ms that run, less the margin
        r.backend.gate.set()
        await asyncio.gather(*[each.settled() for each in accepted])


@pytest.mark.parametrize("before", [[], [1]])
async def test_request_of_many_shapes_counts_as_many_batches(before: list[int]) -> None:
    async with busy(FLAT) as r:
        deadline = r.clock.now() + 0.5
        waiting = [r.engine.submit(MODEL, [item(2, size=size)], deadline) for size in before]
        with pytest.raises(Overloaded):
            r.engine.submit(MODEL, [item(1, size=size) for size in range(1, 61)], deadline)
        many = [item(1, size=size) for size in range(1, 41)]
        waiting.append(r.engine.submit(MODEL, many, deadline))
        r.backend.gate.set()
        await asyncio.gather(*[each.settled() for each in waiting])


async def test_remainder_of_each_shape_is_a_batch() -> None:
    async with busy(FLAT) as r:
        deadline = r.clock.now() + 100
        items = [item(number, size=size) for size in (1, 2) for number in range(1, 11)]
        waiting = r.engine.submit(MODEL, items, deadline)  # 8 and 2, twice
        assert r.metric("torchlane_predicted_wait_seconds") == pytest.approx(0.050)
        await turns()
        r.backend.gate.set()
        await waiting.settled()
        assert sorted(len(batch) for batch in r.backend.batches) == [1, 2, 2, 8, 8]
