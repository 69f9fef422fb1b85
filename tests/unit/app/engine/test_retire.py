"""A model that leaves: nothing new, and what was accepted is answered."""

from __future__ import annotations

import asyncio

import pytest

from app.errors import ModelNotFound
from tests.unit.app.engine.harness import CONTRACT, MODEL, rig, turns, until, values


async def test_retiring_model_finishes_but_accepts_nothing_new() -> None:
    async with rig(max_batch_size=1) as r:
        r.backend.gate.clear()
        running, waiting = r.start(1), r.start(2)
        await until(lambda: bool(r.backend.batches))
        retiring = asyncio.create_task(r.engine.retire(MODEL))
        await turns()
        with pytest.raises(ModelNotFound):
            await r.ask(3)
        with pytest.raises(ModelNotFound):
            r.engine.foresee(MODEL, r.clock.now() + 1, 0.0)
        assert not retiring.done()
        r.backend.gate.set()
        assert values(await running) == [2]
        assert values(await waiting) == [4]
        await retiring


async def test_retirement_removes_gauges_and_keeps_counters() -> None:
    async with rig() as r:
        await r.ask(1, 2)
        await r.engine.retire(MODEL)
        labels = {"model": MODEL.name, "version": str(MODEL.version)}
        gauge = "torchlane_queue_depth_items"
        assert r.metrics.registry.get_sample_value(gauge, labels) is None
        assert r.metric("torchlane_items_computed_total") == 2


async def test_retired_model_can_return() -> None:
    async with rig(cache_bytes=100_000) as r:
        assert await r.ask(1) == [2]
        await r.engine.retire(MODEL)
        await r.engine.retire(MODEL)  # harmless
        r.engine.publish(MODEL, "digest:other", CONTRACT)
        assert await r.ask(1) == [2]
        assert len(r.backend.batches) == 2  # what another made is not its own
        assert r.metric("torchlane_queue_limit_items") == 100
