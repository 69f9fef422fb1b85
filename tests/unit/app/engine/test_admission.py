"""Who cannot be answered in time is refused at once, and told when to come again."""

from __future__ import annotations

import asyncio

import pytest

from app.engine.batch_cost import BatchCost
from app.engine.batch_policy import BatchLimits
from app.engine.queue import ModelQueue, Ticket, TicketQueue
from app.errors import Overloaded
from app.metrics import Metrics
from tests.unit.app.engine.harness import CONTRACT, MODEL, Rig, item, rig, turns, until, values

TEN_MS = {size: 0.010 * size for size in (1, 2, 4, 8)}  # linear: a batch is no faster by item


async def occupied(r: Rig, *numbers: float) -> asyncio.Task[object]:
    """Every replica runs a batch, one of these each, until the gates are opened."""
    for backend in r.backends:
        backend.gate.clear()
    tasks = [r.start(number) for number in numbers]
    await until(lambda: all(backend.batches for backend in r.backends))
    return asyncio.ensure_future(asyncio.gather(*tasks))


async def test_request_that_cannot_finish_is_rejected_immediately() -> None:
    async with rig(batch_s=TEN_MS, max_batch_size=8) as r:
        running = await occupied(r, 0)  # 10 ms
        waiting = [r.start(number, within=0.065) for number in (1, 2, 3, 4, 5)]  # 50 ms
        await turns()
        with pytest.raises(Overloaded, match="65 ms deadline: 5 items are queued") as refused:
            await r.ask(6, within=0.065)
        assert refused.value.retry_after_s == pytest.approx(0.060)
        assert r.metric("torchlane_queue_depth_items") == 5
        r.backend.gate.set()
        await running
        assert [values(await each) for each in waiting] == [[2], [4], [6], [8], [10]]


async def test_idle_replica_accepts_despite_the_prediction() -> None:
    async with rig(batch_s={1: 1000.0}) as r:
        assert await r.ask(1, within=0.1) == [2]


async def test_read_lag_reduces_the_remaining_time() -> None:
    async with rig(batch_s=TEN_MS) as r:
        running = await occupied(r, 0)

        def lag_s() -> float:
            """As asked when a head is read."""
            return round(r.engine.read_lag.seconds(), 6)

        assert lag_s() == 0
        r.clock.advance(0.07)  # in the same turn
        assert lag_s() == 0.07
        await turns()
        assert lag_s() == 0.07  # the turn before took as long: it may have come at its beginning
        await turns()
        r.clock.advance(0.02)  # the loop had nothing to do, and has waited for this one
        assert lag_s() == 0
        deadline = r.clock.now() + 0.1
        with pytest.raises(Overloaded):
            r.engine.submit(MODEL, [item(1)], deadline, 0.09)
        with pytest.raises(Overloaded):
            r.engine.foresee(MODEL, deadline, 0.09)  # not decoded yet
        foreseen = r.engine.foresee(MODEL, deadline, 0.08)
        assert foreseen
        accepted = r.engine.submit(MODEL, [item(1)], deadline, 0.08, foreseen=foreseen)
        with pytest.raises(Overloaded):
            r.engine.foresee(MODEL, deadline, 0.08)
        r.backend.gate.set()
        await running
        assert values(await accepted.answer()) == [2]


async def test_urgent_request_does_not_join_patient_ones() -> None:
    linear = {size: 0.010 * size for size in (1, 2, 4, 8, 16, 32, 64)}
    async with rig(batch_s=linear, max_batch_size=64) as r:
        running = await occupied(r, 0)
        patient = [r.start(number, within=1000.0) for number in range(1, 51)]
        await turns()
        urgent = r.start(99, within=0.1)
        await turns()
        r.backend.gate.set()
        assert values(await urgent) == [198]
        assert r.backend.batches[1] == [99]
        await asyncio.gather(running, *patient)
        assert len(r.backend.batches) == 3


def test_arrears_of_a_model_are_limited() -> None:
    """Such as a model whose other replicas were being rebuilt while it was flooded."""
    tickets = TicketQueue(100, 10**9)
    metrics, costs = Metrics().model(MODEL), {"cpu": BatchCost(1, {0: {1: 0.01}})}
    queue = ModelQueue(MODEL, tickets, BatchLimits(1, 0.0), CONTRACT, metrics, costs)
    for number in range(4):
        tickets.submit(Ticket(b"%d" % number, item(number), 0.0, 9e9, 9e9))
    queue.turn(1.0, fair_s=0.0)
    queue.used_s = 40.0
    queue.turn(2.0, fair_s=40.5)  # it has waited since before this turn
    assert queue.used_s == 40.0
    queue.turn(3.0, fair_s=60.0)
    assert queue.used_s == 59.0
    tickets.take(tickets.shapes()[0].groups, 4, 3.0)
    queue.turn(4.0, fair_s=70.0)  # nothing waits
    assert queue.used_s == 70.0
    queue.turn(5.0, fair_s=65.0)
    assert queue.used_s == 70.0


async def test_cached_and_joined_items_are_never_rejected() -> None:
    async with rig(batch_s=TEN_MS, cache_bytes=10_000) as r:
        assert await r.ask(7) == [14]
        running = await occupied(r, 0)
        waiting = [r.start(number, within=0.1) for number in range(1, 6)]
        await turns()
        with pytest.raises(Overloaded):
            await r.ask(8, within=0.012)
        assert await r.ask(7, within=0.012) == [14]  # cached
        joined = r.start(1, within=0.012)
        await turns()
        r.backend.gate.set()
        assert values(await joined) == [2]
        await asyncio.gather(running, *waiting)
