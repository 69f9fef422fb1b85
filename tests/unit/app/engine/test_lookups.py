"""Items that a second cache is asked for before they are queued."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest

from app.engine.batch_policy import BatchLimits
from app.engine.queue import ModelLimits
from app.engine.shared_tier import Found, NotFound
from app.errors import Overloaded
from tests.unit.app.engine.harness import MODEL, Rig, item, rig, turns, until, values
from tests.unit.app.engine.tiers import ScriptedTier, key_of

COSTS = {1: 0.01, 8: 0.08}  # 10 ms an item
RESULTS = "torchlane_shared_cache_lookups_total"


@pytest.fixture
def tier() -> ScriptedTier:
    made = ScriptedTier()
    made.round_trip_s = 0.001
    return made


@pytest.fixture
async def r(tier: ScriptedTier) -> AsyncIterator[Rig]:
    async with rig(tier=tier, batch_s=COSTS, cache_bytes=10_000, queue_limit=4) as made:
        yield made


async def test_found_items_are_not_computed(r: Rig, tier: ScriptedTier) -> None:
    tier.has(1, 2)
    answer = await r.start(1, 2, 2, 3)
    assert values(answer) == [2.5, 4.5, 4.5, 6]
    assert answer.cache == (2, 1, 1)
    assert tier.asked == [[key_of(1), key_of(2), key_of(3)]]
    assert r.backend.batches == [[3]]
    assert r.metric("torchlane_items_computed_total") == 1
    assert r.metric("torchlane_items_total", outcome="ok") == 4
    assert (r.metric(RESULTS, result="hit"), r.metric(RESULTS, result="miss")) == (2, 1)
    assert _lookups(r) == (2, 1, 1)


async def test_found_items_are_cached_and_computed_ones_offered(r: Rig, tier: ScriptedTier) -> None:
    tier.has(1)
    assert await r.ask(1, 2) == [2.5, 4]
    assert await r.ask(1, 2) == [2.5, 4]
    assert len(tier.asked) == 1
    assert tier.kept == [key_of(2)]  # the other one is there


async def test_lookup_in_flight_can_be_joined(r: Rig, tier: ScriptedTier) -> None:
    tier.has(1)
    tier.held = True
    first = r.start(1)
    await turns()
    second = r.start(1)
    await turns()
    tier.release()
    assert values(await first) == values(await second) == [2.5]
    assert len(tier.asked) == 1
    assert (await second).cache == (1, 0, 0)


async def test_late_lookup_changes_nothing(r: Rig, tier: ScriptedTier) -> None:
    tier.has(1)
    tier.held = True
    asking = r.start(1)
    await turns()
    r.clock.advance(tier.budget_s)
    assert values(await asking) == [2]
    tier.release()
    assert tier.given_up == 1
    assert r.metric(RESULTS, result="timeout") == 1
    assert await r.ask(1) == [2]


async def test_lookup_answered_during_a_stall_is_timely(r: Rig, tier: ScriptedTier) -> None:
    tier.has(1)
    tier.held = True
    asking = r.start(1)
    await turns()
    r.clock.advance(1.0)
    tier.release()  # read in the turn in which the timer is due
    assert values(await asking) == [2.5]
    assert tier.given_up == 0


async def test_last_waiter_to_leave_ends_the_lookup(r: Rig, tier: ScriptedTier) -> None:
    tier.held = True
    staying, leaving = r.start(1, 2), r.start(2, 3)
    await turns()
    assert r.metric("torchlane_queue_depth_items") == 3
    leaving.cancel()
    await turns()
    assert r.metric("torchlane_queue_depth_items") == 2
    tier.has(1, 2, 3)
    tier.release()
    assert values(await staying) == [2.5, 4.5]
    assert r.metric(RESULTS, result="left") == 1
    again = r.start(3)  # another flight: the first one has ended
    assert values(await again) == [6.5]
    assert r.backend.batches == []


async def test_lookups_count_in_the_queue_limit(r: Rig, tier: ScriptedTier) -> None:
    tier.held = True
    asking = r.start(1, 2, 3)
    await turns()
    with pytest.raises(Overloaded):
        await r.ask(4, 5)
    assert r.metric("torchlane_queue_depth_items") == 3
    tier.release()
    assert values(await asking) == [2, 4, 6]


async def test_missed_item_keeps_its_place(r: Rig, tier: ScriptedTier) -> None:
    """It waits since it came, and goes before what came later and has more time."""
    r.backend.gate.clear()
    busy = r.start(0)
    await until(lambda: r.backend.batches == [[0]])
    tier.held = True
    first = r.start(1, within=10)
    await turns()
    r.clock.advance(0.002)
    tier.held = False
    second = r.start(2, within=20)
    await turns()
    tier.release()
    r.backend.gate.set()
    await asyncio.gather(busy, first, second)
    assert r.backend.batches == [[0], [1, 2]]
    assert (await first).queue_s == pytest.approx(0.002)


async def test_lookup_is_skipped_when_computing_is_faster(r: Rig, tier: ScriptedTier) -> None:
    tier.round_trip_s = 0.02
    assert await r.ask(1, 2) == [2, 4]
    assert (tier.asked, tier.kept) == ([], [])
    assert r.metric(RESULTS, result="skipped") == 2


async def test_lookup_that_risks_the_deadline_is_skipped(r: Rig, tier: ScriptedTier) -> None:
    tier.held = True
    assert await r.ask(1, within=0.014) == [2]  # 10 ms of work, and a budget of 5
    assert r.metric(RESULTS, result="skipped") == 1
    asking = r.start(2, within=0.016)
    await turns()
    assert tier.asked == [[key_of(2)]]
    tier.release()
    assert values(await asking) == [4]


async def test_lookup_is_skipped_while_the_breaker_is_open(r: Rig, tier: ScriptedTier) -> None:
    tier.is_open = True
    assert await r.ask(1) == [2]
    assert tier.asked == []
    assert r.metric(RESULTS, result="open") == 1


async def test_model_without_cache_makes_no_lookups(r: Rig, tier: ScriptedTier) -> None:
    r.engine.adjust(MODEL, ModelLimits(BatchLimits(8, 0.0), 4, 1000, caches=False))
    assert await r.ask(1) == [2]
    assert (tier.asked, tier.kept) == ([], [])


@pytest.mark.parametrize(
    "found",
    [
        NotFound.WRONG,
        NotFound.ERROR,
        {"other": np.zeros(1, np.float32)},
        {},
        {"value": np.zeros(1, np.float64)},
        {"value": np.zeros((1, 1), np.float32)},
        {"value": np.array([np.nan], np.float32)},
    ],
)
async def test_invalid_lookup_result_is_computed_instead(
    r: Rig, tier: ScriptedTier, found: Found
) -> None:
    tier.values[key_of(1)] = found
    assert await r.ask(1) == [2]
    why = found.value if isinstance(found, NotFound) else "wrong"
    assert r.metric(RESULTS, result=why) == 1


def _lookups(r: Rig) -> tuple[float, ...]:
    name = "torchlane_cache_lookups_total"
    return tuple(r.metric(name, result=each) for each in ("hit", "miss", "joined"))


async def test_request_abandoned_in_its_turn_is_not_looked_up(r: Rig, tier: ScriptedTier) -> None:
    submission = r.engine.submit(MODEL, [item(1)], r.clock.now() + 1)
    submission.abandon()
    await turns()
    assert tier.asked == []
    assert r.metric("torchlane_queue_depth_items") == 0
    assert _lookups(r) == (0, 1, 0)


async def test_lookups_count_in_predictions(r: Rig, tier: ScriptedTier) -> None:
    tier.held = True
    asking = r.start(1, 2, 3, within=0.036)
    await turns()
    with pytest.raises(Overloaded, match="3 items are queued"):  # 40 ms of work in all
        await asyncio.wait_for(r.ask(4, within=0.037), 5)
    tier.release()
    await asking
