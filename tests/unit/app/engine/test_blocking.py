"""On one core the event loop stands still for a batch that is soon there."""

from __future__ import annotations

import asyncio
import time

from app.engine.replica import Replica
from app.errors import ReplicaError
from app.types import Arrays
from tests.unit.app.engine.harness import rig, turns, values

QUICK = {1: 1e-6}  # what the engine has been told of its batches
LONG_S = 60.0  # the loop stands still for whatever this machine takes for a batch of a fake


async def test_blocking_loop_answers_in_the_same_turn() -> None:
    async with rig(block_s=LONG_S, batch_s=QUICK) as r:
        submission = r.submit(1, 2, 3)
        await asyncio.sleep(0)
        assert submission.is_settled
        assert values(submission.result()) == [2, 4, 6]


async def test_loop_does_not_block_for_a_long_batch() -> None:
    def takes_10_ms(_: Arrays) -> None:
        time.sleep(0.01)

    async with rig(scripts=(takes_10_ms,), block_s=0.005, batch_s={1: 0.01}) as r:
        r.backend.gate.clear()
        submission = r.submit(1)
        await turns()
        assert not submission.is_settled
        assert r.replicas[0].busy
        r.backend.gate.set()
        assert values(await submission.answer()) == [2]


async def test_hanging_model_blocks_the_loop_within_its_limit() -> None:
    async with rig(block_s=0.02, batch_s=QUICK) as r:
        r.backend.gate.clear()
        submission = r.submit(1)
        await turns()
        assert r.replicas[0].busy
        assert not submission.is_settled
        r.backend.gate.set()
        assert values(await submission.answer()) == [2]


async def test_loop_blocks_for_one_batch_per_turn() -> None:
    async with rig(max_batch_size=2, block_s=LONG_S, batch_s=QUICK) as r:
        submission = r.submit(1, 2, 3, 4, 5)
        seen: list[int] = []
        while not submission.is_settled:
            await asyncio.sleep(0)
            seen.append(len(r.backend.batches))
        assert seen == [1, 2, 3]
        assert values(submission.result()) == [2, 4, 6, 8, 10]


async def test_raising_listener_does_not_affect_a_blocking_loop() -> None:
    told: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(str(context)))

    def lost(_: Replica, fault: ReplicaError) -> None:
        raise RuntimeError(f"no listener: {fault}")

    def breaks(_: Arrays) -> None:
        raise ReplicaError("broken")

    async with rig(scripts=(breaks, None), block_s=LONG_S, batch_s=QUICK) as r:
        r.engine.watch_faults(lost)
        submission = r.submit(1)
        assert values(await submission.answer()) == [2]
        assert "no listener: broken" in told[0]
        assert len(told) == 1
