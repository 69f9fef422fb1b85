"""A model without replicas that is loaded on demand: its requests wait for it, or fail with it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from app.errors import DeadlineExceeded, ModelNotReady, Overloaded
from app.types import ModelId
from tests.unit.app.engine.harness import CONTRACT, FAR, Rig, item, rig, turns, until, values

COLD = ModelId("cold", 1)


class Demand:
    """Notes what it is asked for."""

    def __init__(self) -> None:
        self.is_cold = True
        self.uses = 0
        self.allowed_s: list[float] = []
        self.for_copies: list[bool] = []
        self.refusal: Exception | None = None
        self.may_load = True

    def used(self) -> None:
        self.uses += 1

    def ask(self, allowed_s: float, *, for_copies: bool = False) -> None:
        self.allowed_s.append(allowed_s)
        self.for_copies.append(for_copies)
        if self.refusal is not None:
            raise self.refusal

    async def arrive(self, r: Rig) -> None:
        await r.replicas[0].install(COLD, lambda: r.backend)
        self.is_cold = False
        r.engine.wake()


@contextlib.asynccontextmanager
async def cold_rig() -> AsyncIterator[tuple[Rig, Demand]]:
    async with rig(cache_bytes=100_000) as r:
        demand = Demand()
        r.engine.publish(COLD, "digest:cold", CONTRACT, demand=demand)
        yield r, demand


async def test_items_wait_until_the_model_is_there() -> None:
    async with cold_rig() as (r, demand):
        asked = [
            asyncio.create_task(r.engine.predict(COLD, [item(number)], r.clock.now() + 9.0))
            for number in (1, 2, 2)
        ]
        await turns()
        assert demand.allowed_s == [9.0, 9.0]  # the third joins the second
        assert await r.ask(5) == [10]  # other models answer meanwhile
        assert not r.engine.is_unused(COLD)
        await demand.arrive(r)
        assert [values(await each) for each in asked] == [[2], [4], [4]]
        assert r.engine.is_unused(COLD)
        assert demand.uses == 2


async def test_copies_are_no_use() -> None:
    async with cold_rig() as (r, demand):
        asked = asyncio.create_task(r.engine.predict(COLD, [item(1)], FAR, are_copies=True))
        await turns()
        await demand.arrive(r)
        assert values(await asked) == [2]
        await r.engine.predict(COLD, [item(2)], FAR, are_copies=True)
        assert (demand.for_copies, demand.uses) == ([True], 0)


async def test_a_cached_answer_asks_for_nothing() -> None:
    async with cold_rig() as (r, demand):
        await demand.arrive(r)
        await r.engine.predict(COLD, [item(1)], FAR)
        await r.replicas[0].remove(COLD)
        demand.is_cold = True
        assert values(await r.engine.predict(COLD, [item(1)], FAR)) == [2]
        assert (demand.uses, demand.allowed_s) == (1, [])


async def test_a_refusal_queues_nothing() -> None:
    async with cold_rig() as (r, demand):
        demand.refusal = Overloaded("no room", retry_after_s=3.0)
        with pytest.raises(Overloaded, match="no room"):
            await r.engine.predict(COLD, [item(1)], FAR)
        assert r.engine.is_unused(COLD)
        assert demand.uses == 0  # else refused requests could make others leave


async def test_a_request_that_is_foreseen_to_be_late_is_no_use() -> None:
    async with rig() as r:
        demand = Demand()
        slow = {r.replicas[0].name: {0: {1: 10.0}}}
        r.engine.publish(COLD, "digest:cold", CONTRACT, slow, demand=demand)
        await demand.arrive(r)
        r.backend.gate.clear()
        running = asyncio.create_task(r.engine.predict(COLD, [item(1)], FAR))
        await until(lambda: bool(r.backend.batches))
        with pytest.raises(Overloaded, match="cannot meet"):
            r.engine.submit(COLD, [item(2)], r.clock.now() + 5.0)
        assert demand.uses == 1
        r.backend.gate.set()
        assert values(await running) == [2]


async def test_waiting_requests_expire() -> None:
    async with cold_rig() as (r, _):
        asked = asyncio.create_task(r.engine.predict(COLD, [item(1)], r.clock.now() + 1.0))
        await turns()
        r.clock.advance(1.5)
        with pytest.raises(DeadlineExceeded):
            await asked
        assert r.engine.is_unused(COLD)


async def test_a_failed_load_fails_all_that_wait() -> None:
    async with cold_rig() as (r, demand):
        asked = [
            asyncio.create_task(r.engine.predict(COLD, [item(number)], FAR)) for number in (1, 2)
        ]
        await turns()
        r.engine.fail_waiting(COLD, ModelNotReady("it is damaged"))
        for each in asked:
            with pytest.raises(ModelNotReady, match="damaged"):
                await each
        await demand.arrive(r)
        assert values(await r.engine.predict(COLD, [item(1)], FAR)) == [2]


async def test_a_model_that_could_not_be_loaded_cannot_run_for_a_while() -> None:
    async with cold_rig() as (r, demand):
        assert r.engine.can_run(COLD)
        demand.may_load = False
        assert not r.engine.can_run(COLD)


async def test_a_model_that_nobody_needs_costs_no_turn() -> None:
    async with cold_rig() as (r, demand):
        queues = r.engine._timeline.queues
        assert COLD not in queues
        asked = asyncio.create_task(r.engine.predict(COLD, [item(1)], FAR))
        await turns()
        r.engine.park(COLD)  # too early
        assert COLD in queues
        await demand.arrive(r)
        assert values(await asked) == [2]
        await r.replicas[0].remove(COLD)
        r.engine.park(COLD)
        assert COLD not in queues


async def test_a_model_that_is_retired_is_in_use_until_its_requests_are_answered() -> None:
    async with cold_rig() as (r, demand):
        asked = asyncio.create_task(r.engine.predict(COLD, [item(1)], FAR))
        await turns()
        retiring = asyncio.create_task(r.engine.retire(COLD))
        await turns()
        assert not r.engine.is_unused(COLD)
        await demand.arrive(r)
        assert values(await asked) == [2]
        await retiring
        assert r.engine.is_unused(COLD)
