"""On one core the event loop stands still for a batch that is soon there."""

from __future__ import annotations

import asyncio
import time

from app.engine.submission import Submission
from app.types import Arrays
from tests.unit.app.engine.harness import FAR, MODEL, Rig, item, rig, turns, until, values

QUICK = {1: 1e-6}  # what the engine has been told of its batches
LONG_S = 60.0  # the loop stands still for whatever this machine takes for a batch of a fake


def submit(r: Rig, *numbers: float) -> Submission:
    """As the reader of a socket does: at once, without a task."""
    deadline = r.clock.now() + FAR
    return r.engine.submit(MODEL, [item(number) for number in numbers], deadline)


async def test_blocking_loop_answers_in_the_same_turn() -> None:
    async with rig(block_s=LONG_S, batch_s=QUICK) as r:
        submission = submit(r, 1, 2, 3)
        await asyncio.sleep(0)
        assert submission.is_settled
        assert values(submission.result()) == [2, 4, 6]


async def test_loop_does_not_block_for_an_unmeasured_batch() -> None:
    async with rig(block_s=LONG_S) as r:
        r.backend.gate.clear()
        submission = submit(r, 1)
        await turns()  # would hang
        assert not submission.is_settled
        r.backend.gate.set()
        assert values(await submission.answer()) == [2]


async def test_loop_does_not_block_for_a_long_batch() -> None:
    def takes_10_ms(_: Arrays) -> None:
        time.sleep(0.01)

    async with rig(scripts=(takes_10_ms,), block_s=0.005, batch_s={1: 0.01}) as r:
        r.backend.gate.clear()
        submission = submit(r, 1)
        await turns()
        assert not submission.is_settled
        assert r.replicas[0].busy
        r.backend.gate.set()
        assert values(await submission.answer()) == [2]


async def test_hanging_model_blocks_the_loop_within_its_limit() -> None:
    async with rig(block_s=0.02, batch_s=QUICK) as r:
        r.backend.gate.clear()
        submission = submit(r, 1)
        await turns()
        assert r.replicas[0].busy
        assert not submission.is_settled
        r.backend.gate.set()
        assert values(await submission.answer()) == [2]


async def test_loop_blocks_for_one_batch_per_turn() -> None:
    async with rig(max_batch_size=2, block_s=LONG_S, batch_s=QUICK) as r:
        submission = submit(r, 1, 2, 3, 4, 5)
        seen: list[int] = []
        while not submission.is_settled:
            await asyncio.sleep(0)
            seen.append(len(r.backend.batches))
        assert seen == [1, 2, 3]
        assert values(submission.result()) == [2, 4, 6, 8, 10]


async def test_second_replica_starts_while_the_first_hangs() -> None:
    async with rig(scripts=(None, None), max_batch_size=1, block_s=0.02, batch_s=QUICK) as r:
        r.backends[0].gate.clear()
        submission = submit(r, 1, 2)
        await until(lambda: r.backends[1].batches == [[2]])
        assert r.replicas[0].busy
        r.backends[0].gate.set()
        assert values(await submission.answer()) == [2, 4]
