"""Pools of equal devices: all are busy, a slower pool helps, and one that fails loses nothing."""

from __future__ import annotations

import random

import pytest

from app.engine.admission import RESERVE
from app.types import ModelId
from tests.unit.app.engine.simulation import Seconds, SimulatedReplica, Simulation, simulation

pytestmark = pytest.mark.slow
ITEM_S = 0.008  # on a CPU
CPU, GPU = 1.0, 100.0  # speeds: a batch of 8 takes 64 ms, or 0.64 ms
FOUR = (CPU,) * 4


def per_item(items: int) -> float:
    return ITEM_S * items


def launched(items: int) -> float:
    """As on a GPU: the first item is most of the cost."""
    return 0.004 + 0.0005 * items


def devices(*speeds: float, size: int = 8) -> Simulation:
    """A model on devices of these speeds."""
    return simulation({"m": per_item}, [("m",)] * len(speeds), size, speeds=speeds)


def poisson(s: Simulation, rate: float, count: int, within: float, seed: int) -> float:
    """Requests at this rate; returns the seconds until the last."""
    draw, began = random.Random(seed), s.clock.now()
    at = began
    for _ in range(count):
        at += draw.expovariate(rate)
        s.ask_at(at, "m", within)
    return at - began


def check_right(s: Simulation) -> None:
    assert [each.answer for each in s.asked] == [2 * each.number for each in s.asked]


def items_of(s: Simulation, replica: int) -> int:
    return sum(batch.items for batch in s.replicas[replica].ran)


async def test_stream_starves_no_request_and_keeps_its_order() -> None:
    """Poisson arrivals at nine tenths of what the devices hold."""
    s = devices(*FOUR)
    await s.run(poisson(s, 0.9 * 4 / ITEM_S, 1500, 1e6, seed=1) + 1)
    check_right(s)
    waits = sorted(each.done_at - each.at for each in s.asked if each.done_at is not None)
    assert len(waits) == 1500
    assert waits[-1] < 2.5 * per_item(8)
    ran = sorted((batch for r in s.replicas for batch in r.ran), key=lambda batch: batch.numbers)
    assert [batch.began for batch in ran] == sorted(batch.began for batch in ran)


@pytest.mark.parametrize("load", [0.5, 3.0])
@pytest.mark.parametrize(("of_batch", "speeds"), [(per_item, FOUR), (launched, (4.0, CPU))])
async def test_accepted_requests_finish_in_time(
    load: float, of_batch: Seconds, speeds: tuple[float, ...]
) -> None:
    """Poisson arrivals with a deadline; the load is that of the fast pool's capacity."""
    s = simulation({"m": of_batch}, [("m",)] * len(speeds), 8, speeds=speeds)
    fast = [speed for speed in speeds if speed == max(speeds)]
    rate, deadline = load * sum(fast) * 8 / of_batch(8), 0.2
    count = min(int(rate), 3000)
    await s.run(poisson(s, rate, count, deadline, seed=7) + 1)
    accepted = [each for each in s.asked if each.retry_after_s is None]
    in_time = [
        each
        for each in accepted
        if not each.expired and each.done_at is not None and each.done_at <= each.at + deadline
    ]
    assert len(in_time) == len(accepted)
    assert len(in_time) >= 0.93 * min(count, count / load)
    if load <= 0.5:
        assert len(accepted) == count


@pytest.mark.parametrize("deadline", [0.1, 1.0])
async def test_admission_matches_the_devices_capacity(deadline: float) -> None:
    s = devices(*FOUR)
    for _ in range(32):
        s.ask("m")
    await s.run(0.001)  # a full batch runs on each
    rest = [s.ask("m", deadline) for _ in range(2000)]
    accepted = sum(each.retry_after_s is None for each in rest)
    possible = 4 * ((deadline * (1 - RESERVE) + 0.001) / ITEM_S - 8)
    size = 8 if deadline / 2 > per_item(8) else 1
    assert possible - 4 * size <= accepted <= possible  # less a batch of each
    hints = [each.retry_after_s for each in rest if each.retry_after_s is not None]
    began = s.clock.now()
    await s.run(10)
    assert not any(each.expired for each in rest)
    took_s = max(each.done_at for each in s.asked if each.done_at is not None) - began
    assert took_s * 0.5 < hints[-1] < took_s * 2


@pytest.mark.parametrize("within", [0.9 * ITEM_S, 1e6])
async def test_fast_pool_keeps_items_that_it_finishes_in_time(within: float) -> None:
    s = devices(CPU, GPU)
    await s.run(poisson(s, 0.8 * GPU / ITEM_S, 800, within, seed=3) + 1)
    check_right(s)
    assert not s.replicas[0].ran


async def test_slow_pool_helps_with_what_the_fast_one_cannot_finish() -> None:
    s = devices(CPU, 4.0)
    for _ in range(2000):
        s.ask("m", 1.0)
    await s.run(2.0)
    accepted = [each for each in s.asked if each.retry_after_s is None]
    assert not any(each.expired for each in accepted)
    assert len(accepted) > 1.1 * 4.0 / ITEM_S * (1 - RESERVE)  # of the fast one alone
    assert items_of(s, 0) > 0.6 * (1 - RESERVE) / ITEM_S
    s.replicas[0].ran.clear()
    for _ in range(100):  # nothing that is late any more
        s.ask("m", 1.0)
    await s.run(1.0)
    assert not s.replicas[0].ran


async def test_slow_pool_takes_over_from_a_hanging_one() -> None:
    """Nothing else happens meanwhile."""
    s = devices(GPU, CPU)
    s.replicas[0].around_s = 30.0  # this batch never ends
    s.ask("m")
    await s.run(0.0001)
    waits = s.ask("m", 5.0)
    for _ in range(490):  # a timer that is due is heard of at the end of a step
        await s.run(0.01)
    assert waits.done_at is not None
    assert not waits.expired
    assert waits.done_at - waits.at < 1.1


@pytest.mark.parametrize("load", [0.8, 3.0])
async def test_two_models_on_both_pools_finish_what_is_accepted(load: float) -> None:
    """The slower pool also helps with what waits for the other model's work."""
    models = ("a", "b")
    s = simulation(dict.fromkeys(models, per_item), [models, models], 8, speeds=(4.0, CPU))
    draw, at, within = random.Random(5), s.clock.now(), 0.3
    for number in range(int(load * 4.0 / ITEM_S)):
        at += draw.expovariate(load * 4.0 / ITEM_S)
        s.ask_at(at, models[number % 2], within)
    await s.run(at - s.clock.now() + 1)
    accepted = [each for each in s.asked if each.retry_after_s is None]
    late = [each for each in accepted if each.done_at is None or each.done_at > each.at + within]
    assert not late
    assert len(accepted) >= 0.9 * len(s.asked) / max(1.0, load)


async def test_a_slower_pool_is_used_while_the_fast_device_proves_a_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    s = devices(GPU, CPU)
    proves = property(lambda replica: replica is s.replicas[0])  # in its thread
    monkeypatch.setattr(SimulatedReplica, "runs_a_load", proves)
    asked = s.ask("m")
    await s.run(1.0)
    assert asked.answer == 2 * asked.number
    assert not s.replicas[0].ran


async def test_late_pool_counts_with_its_own_measurement() -> None:
    s = simulation({"m": per_item}, [("m",), ()], 8, speeds=(CPU, 4.0), unmeasured=[1])
    late_one = s.replicas[1]
    s.engine.measured(ModelId("m", 1), "fake#1", {0: {n: per_item(n) / 4 for n in (1, 2, 4, 8)}})
    late_one.models = dict(s.replicas[0].models)
    for _ in range(5):
        s.ask("m")
    await s.run(1)
    assert [batch.items for batch in late_one.ran] == [5]
