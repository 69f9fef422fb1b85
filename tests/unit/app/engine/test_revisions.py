"""Two revisions of one version: while the new one takes over, the old one answers what it has."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from app.engine.batch_policy import BatchLimits
from app.engine.queue import ModelLimits
from app.types import Serving
from tests.unit.app.engine.harness import CONTRACT, FAR, MODEL, item, rig, turns, until

ANEW = MODEL._replace(revision=1)


@pytest.mark.parametrize("sooner", [True, False])
async def test_leaving_callers_do_not_affect_shared_items(sooner: bool) -> None:
    async with rig(max_batch_size=1, cache_bytes=1 << 20) as r:
        r.backend.gate.clear()
        running = r.start(0)
        await until(lambda: len(r.backend.batches) == 1)
        old = r.engine.submit(MODEL, [item(7)], r.clock.now() + FAR)  # waits behind that
        r.replicas[0].models[ANEW] = Serving(())
        limits = ModelLimits(BatchLimits(1, 0.0), 100, 10**9)
        r.engine.publish(ANEW, "digest:fake", CONTRACT, {}, limits)
        deadline = r.clock.now() + (FAR / 2 if sooner else 2 * FAR)
        new = r.engine.submit(ANEW, [item(7)], deadline)
        old.abandon()
        new.abandon()
        waits = r.engine.submit(MODEL, [item(8)], r.clock.now() + FAR)
        r.backend.gate.set()
        await running
        (outcome,) = (await waits.answer()).outcomes
        assert isinstance(outcome, Mapping)
        assert outcome["value"].tolist() == [16.0]
        async with asyncio.timeout(30):
            await r.engine.retire(MODEL)  # nothing of it is left
            await turns()
