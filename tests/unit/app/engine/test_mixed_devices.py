"""Devices of different speeds: all are busy, in their measure, and one that fails loses nothing."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.admission import RESERVE
from app.engine.replica import ReplicaState
from app.engine.timeline import TRY_AFTER
from app.types import ModelId
from tests.unit.app.engine.harness import item, value_of
from tests.unit.app.engine.simulation import Seconds, Simulation, simulation

pytestmark = pytest.mark.slow
SPEEDS = (1.0, 1.0, 2.0, 4.0)  # of four devices
ITEM_S = 0.008  # on a device of speed 1


def per_item(items: int) -> float:
    return ITEM_S * items


def launched(items: int) -> float:
    """As on a GPU: the first item is most of the cost."""
    return 0.004 + 0.0005 * items


def mixed(*speeds: float, told: tuple[float, ...] | None = None, size: int = 8) -> Simulation:
    """A model on devices of these speeds; the engine was told of others, if so."""
    s = simulation({"m": per_item}, [("m",)] * len(speeds), size, speeds=told or speeds)
    for replica, speed in zip(s.replicas, speeds, strict=True):
        replica.speed = speed
    return s


def items_of(s: Simulation, replica: int, until: float) -> int:
    return sum(batch.items for batch in s.replicas[replica].ran if batch.ends <= until)


def check_right(s: Simulation) -> None:
    assert [each.answer for each in s.asked] == [2 * each.number for each in s.asked]


async def test_throughput_adds_up_over_all_devices() -> None:
    s = mixed(*SPEEDS)
    began = s.clock.now()
    for _ in range(12_000):
        s.ask("m")
    await s.run(10)
    done = [items_of(s, replica, began + 10) for replica in range(4)]
    possible = 10 * sum(SPEEDS) / ITEM_S
    assert sum(done) >= 0.95 * possible
    for count, speed in zip(done, SPEEDS, strict=True):
        assert count == pytest.approx(possible * speed / sum(SPEEDS), rel=0.02)
    await s.run(10)
    check_right(s)


async def test_stream_starves_no_request_and_keeps_its_order() -> None:
    """Poisson arrivals at nine tenths of what the devices hold."""
    s, draw = mixed(*SPEEDS), random.Random(1)
    at, rate = s.clock.now(), 0.9 * sum(SPEEDS) / ITEM_S
    for _ in range(5000):
        at += draw.expovariate(rate)
        s.ask_at(at, "m")
    await s.run(at - s.clock.now() + 1)
    check_right(s)
    waits = sorted(each.done_at - each.at for each in s.asked if each.done_at is not None)
    assert len(waits) == 5000
    assert waits[-1] < 2.5 * per_item(8)  # a full batch on a slow device is 1 of that
    ran = sorted((batch for r in s.replicas for batch in r.ran), key=lambda batch: batch.numbers)
    assert [batch.began for batch in ran] == sorted(batch.began for batch in ran)


async def test_large_request_is_spread_by_speed() -> None:
    s = mixed(*SPEEDS, size=64)
    for _ in range(64):
        s.ask("m")
    await s.run(1)
    ran = [[batch.items for batch in replica.ran] for replica in s.replicas]
    assert ran == [[8], [8], [16], [32]]
    check_right(s)


async def test_single_item_runs_on_the_fastest_idle_device() -> None:
    s = mixed(2.0, 4.0, 3.0)
    for number in range(3):
        s.ask_at(s.clock.now() + 0.0001 * number, "m")
    await s.run(1)
    ran = [[batch.began for batch in replica.ran] for replica in s.replicas]
    assert [len(each) for each in ran] == [1, 1, 1]
    assert ran[1] < ran[2] < ran[0]


async def test_wrong_speeds_are_learned() -> None:
    s = mixed(*SPEEDS, told=(1.0, 1.0, 1.0, 1.0))
    for _ in range(4000):
        s.ask("m")
    await s.run(10)
    for replica in s.replicas:
        replica.ran.clear()
    for _ in range(16):
        s.ask("m")
    await s.run(1)
    ran = [[batch.items for batch in replica.ran] for replica in s.replicas]
    assert ran == [[2], [2], [4], [8]]


@pytest.mark.parametrize("fails", range(4))
async def test_device_failure_loses_no_requests(fails: int) -> None:
    s = mixed(*SPEEDS)
    for _ in range(3000):
        s.ask("m")
    await s.run(1.0001)
    s.replicas[fails].broken = True
    await s.run(10)
    check_right(s)
    assert s.replicas[fails].state is ReplicaState.SICK
    after = [batch for batch in s.replicas[fails].ran if batch.began > s.asked[0].at + 1.1]
    assert not after
    assert [each.state for each in s.replicas].count(ReplicaState.READY) == 3


@pytest.mark.parametrize("load", [0.5, 0.9, 1.5, 3.0])
@pytest.mark.parametrize("of_batch", [per_item, launched])
async def test_accepted_requests_finish_in_time(load: float, of_batch: Seconds) -> None:
    """Poisson arrivals with a deadline; a slow device is as good as its speed, no better."""
    s = simulation({"m": of_batch}, [("m",)] * 4, 8, speeds=SPEEDS)
    draw, at, deadline = random.Random(7), s.clock.now(), 0.2
    rate = load * sum(speed * 8 / of_batch(8) for speed in SPEEDS)
    count = int(rate)
    for _ in range(count):
        at += draw.expovariate(rate)
        s.ask_at(at, "m", deadline)
    began = s.clock.now()
    await s.run(at - began + 1)
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


@settings(deadline=None, max_examples=5)
@given(st.lists(st.floats(0.2, 5), min_size=1, max_size=6), st.integers(1, 32))
async def test_backlog_keeps_devices_of_any_speed_busy(speeds: list[float], size: int) -> None:
    s = mixed(*speeds, size=size)
    slowest_s = per_item(size) / min(speeds)
    wanted_s = 20 * slowest_s
    for _ in range(int(wanted_s * 1.2 * sum(speeds) / ITEM_S) + 1):
        s.ask("m")
    began = s.clock.now()
    await s.run(wanted_s)
    for replica in s.replicas:
        assert s.used_s("m", s.replicas.index(replica)) == pytest.approx(wanted_s)
    assert all(batch.items == size for r in s.replicas for batch in r.ran if batch.began > began)


@pytest.mark.parametrize("deadline", [0.1, 0.3, 1.0])
async def test_admission_matches_the_devices_capacity(deadline: float) -> None:
    s = mixed(*SPEEDS)
    for _ in range(32):
        s.ask("m")
    await s.run(0.001)  # a full batch runs on each
    rest = [s.ask("m", deadline) for _ in range(2000)]
    accepted = sum(each.retry_after_s is None for each in rest)
    allowed_s = deadline * (1 - RESERVE) + 0.001
    possible = sum(allowed_s * speed / ITEM_S - 8 for speed in SPEEDS)
    sizes = [8 if deadline / 2 > per_item(8) / speed else 1 for speed in SPEEDS]
    assert possible - sum(sizes) <= accepted <= possible  # less a batch of each
    hints = [each.retry_after_s for each in rest if each.retry_after_s is not None]
    began = s.clock.now()
    await s.run(10)
    assert not any(each.expired for each in rest)
    took_s = max(each.done_at for each in s.asked if each.done_at is not None) - began
    assert took_s * 0.5 < hints[-1] < took_s * 2


GPU, CPU = 100.0, 1.0  # a batch of 8 takes 0.64 ms, or 64 ms


def late(s: Simulation) -> int:
    return sum(each.expired for each in s.asked)


async def test_urgent_item_avoids_a_device_too_slow_for_it() -> None:
    """The slow one cannot do a single item in time; it is tried with one item now and then."""
    s = mixed(GPU, CPU)
    at, draw = s.clock.now(), random.Random(3)
    for _ in range(6_000):
        at += draw.expovariate(0.8 * GPU / ITEM_S)
        s.ask_at(at, "m", 0.9 * ITEM_S)
    began = s.clock.now()
    await s.run(at - began + 1)
    tried = [batch.items for batch in s.replicas[1].ran]
    assert set(tried) == {1}
    assert len(tried) <= 1 + (at - began) / (TRY_AFTER * ITEM_S)
    assert late(s) <= len(tried)
    assert sum(each.retry_after_s is not None for each in s.asked) == 0


async def test_fast_device_keeps_items_it_finishes_sooner() -> None:
    """However much time there is."""
    s = mixed(GPU, CPU)
    for number in range(200):
        s.ask_at(s.clock.now() + 0.0001 * number, "m")
    await s.run(0.1)
    assert all(each.done_at is not None and each.done_at - each.at < 0.002 for each in s.asked)
    assert not s.replicas[1].ran


async def test_slow_device_works_under_a_backlog() -> None:
    s = mixed(10.0, CPU)
    for _ in range(2000):
        s.ask("m")
    await s.run(0.5)
    assert s.used_s("m", 1) == pytest.approx(0.5)


async def test_wrong_estimate_of_a_slow_device_is_corrected() -> None:
    s = mixed(4.0, 4.0, told=(4.0, 0.04))
    at, draw = s.clock.now(), random.Random(5)
    for _ in range(20_000):
        at += draw.expovariate(1.5 * 4.0 / ITEM_S)
        s.ask_at(at, "m", 0.1)
    await s.run(at - s.clock.now())
    half = len(s.asked) // 2
    refused = sum(each.retry_after_s is not None for each in s.asked[half:])
    assert refused < 0.05 * half  # 1.5 times of what one of them holds, 0.75 of both


async def test_late_replica_counts_with_its_own_measurement() -> None:
    s = simulation({"m": per_item}, [("m",), ()], 8)
    late_one = s.replicas[1]
    late_one.speed = 4.0
    s.engine.measured(ModelId("m", 1), "fake#1", {0: {n: per_item(n) / 4 for n in (1, 2, 4, 8)}})
    late_one.models = dict(s.replicas[0].models)
    for _ in range(5):
        s.ask("m")
    await s.run(1)
    assert [batch.items for batch in late_one.ran] == [4]


async def test_large_request_keeps_order_when_a_device_fails() -> None:
    s = mixed(*SPEEDS)
    items = [item(float(number)) for number in range(300)]
    submission = s.engine.submit(ModelId("m", 1), items, s.clock.now() + 60)
    other = s.ask("m")
    gone = s.engine.submit(ModelId("m", 1), [item(-1.0)], s.clock.now() + 60)
    gone.abandon()
    await s.run(0.02)
    s.replicas[3].broken = True
    await s.run(10)
    outcomes = submission.result().outcomes
    assert [value_of(outcome) for outcome in outcomes] == [2.0 * n for n in range(300)]
    assert all(replica.ran for replica in s.replicas)
    assert other.done_at is not None


async def test_slow_device_takes_over_from_a_hanging_one() -> None:
    """Nothing else happens meanwhile."""
    s = mixed(GPU, CPU)
    s.replicas[0].around_s = 30.0  # this batch never ends
    s.ask("m")
    await s.run(0.0001)
    waits = s.ask("m", 5.0)
    for _ in range(490):  # a timer that is due is heard of at the end of a step
        await s.run(0.01)
    assert waits.done_at is not None
    assert not waits.expired
    assert waits.done_at - waits.at < 1.1


async def test_admission_ignores_a_hanging_device() -> None:
    s = mixed(GPU, 0.02)  # an item takes 0.4 s
    s.replicas[0].around_s = 1000.0
    s.ask("m")
    await s.run(2.0)  # it is overdue
    start = s.clock.now()
    asked = []
    for number in range(300):
        s.ask_at(start + 0.01 * number, "m", 1.0)
    await s.run(4.0)
    asked = [each for each in s.asked if each.at >= start]
    accepted = [each for each in asked if each.retry_after_s is None]
    assert sum(each.expired for each in accepted) <= 1
    assert len(accepted) >= 5


async def test_wrong_estimate_is_corrected_despite_another_model() -> None:
    s = simulation({"a": per_item, "b": per_item}, [("a",), ("a", "b")], 1)
    slow = {replica.name: {1: 0.008 * (30 if at else 1)} for at, replica in enumerate(s.replicas)}
    s.engine.measured(ModelId("a", 1), "fake#1", {0: slow["fake#1"]})
    draw, at = random.Random(2), s.clock.now()
    for _ in range(4000):
        at += draw.expovariate(1.5 / ITEM_S)
        s.ask_at(at, "a", 0.1)
    for second in range(50):
        s.ask_at(s.clock.now() + 0.5 * second, "b")
    await s.run(at - s.clock.now() + 1)
    assert sum(batch.model == "a" for batch in s.replicas[1].ran) > 500


async def test_long_batches_elsewhere_do_not_cause_rejections() -> None:
    times = itertools.cycle((0.6, 1.4))
    s = simulation(
        {"long": lambda _: 5.0 * next(times), "short": per_item},
        [("short",), ("long", "short")],
        expected={"long": lambda _: 5.0, "short": per_item},
    )
    draw, start = random.Random(4), s.clock.now()
    for number in range(12):
        s.ask_at(start + 5.2 * number, "long")
    at = start
    for _ in range(2500):
        at += draw.expovariate(0.4 / ITEM_S)
        s.ask_at(at, "short", 0.1)
    await s.run(at - start + 1)
    short = [each for each in s.asked if each.model == "short"]
    assert sum(each.retry_after_s is not None for each in short) < 0.005 * len(short)
