"""While a device works at one batch, the next one is prepared for it."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from app.engine.batch_policy import Ahead, BatchLimits, Decision, decide_ahead
from app.errors import DeviceLost, ReplicaError
from app.types import Arrays
from tests.unit.app.engine.harness import DEFAULT, Rig, rig, turns, until, values
from tests.unit.app.engine.launching import LaunchingFake
from tests.unit.app.engine.simulation import Simulation, simulation

LIMITS = BatchLimits(8, 0.0)
ITEM_S = 0.010
PREPARE_S = 0.020  # of a batch; a full one computes for 80 ms


def linear(items: int) -> float:
    return items * ITEM_S


class TestPolicy:
    """`decide_ahead`."""

    def test_partial_batch_grows_while_the_device_is_busy(self) -> None:
        early = decide_ahead(3, 0.0, 1.0, Ahead(2, 0.1), LIMITS)
        assert early.size == 0
        assert early.again_in_s == pytest.approx(0.9)
        assert decide_ahead(3, 0.0, 0.1, Ahead(2, 0.1), LIMITS) == Decision(3)
        assert decide_ahead(3, 0.0, 0.0, Ahead(2, 0.1), LIMITS) == Decision(3)

    def test_inefficient_batch_waits_for_the_device(self) -> None:
        assert decide_ahead(1, 0.0, 0.0, Ahead(2, 0.1), LIMITS) == Decision(0)

    def test_a_configured_wait_is_kept(self) -> None:
        patient = BatchLimits(8, 0.5)
        early = decide_ahead(3, 0.2, 0.0, Ahead(2, 0.1), patient)
        assert early.size == 0
        assert early.again_in_s == pytest.approx(0.3)
        assert decide_ahead(3, 0.6, 0.0, Ahead(2, 0.1), patient) == Decision(3)
        assert decide_ahead(8, 0.0, 0.0, Ahead(2, 0.1), patient) == Decision(8)


def one(
    prepare_s: float, seconds: Callable[[int], float] = linear, replicas: int = 1
) -> Simulation:
    return simulation({"m": seconds}, [["m"]] * replicas, prepare_s=prepare_s)


async def test_device_never_waits_under_a_backlog() -> None:
    s = one(PREPARE_S)
    for _ in range(400):
        s.ask("m")
    await s.run(3.0)
    batches = s.replicas[0].ran
    assert all(each.items == 8 for each in batches)
    done = sum(each.items for each in batches if each.ends <= s.clock.now())
    assert done >= 0.98 * 3.0 / ITEM_S - 8
    for before, after in itertools.pairwise(batches[:-1]):
        assert after.ends == pytest.approx(before.ends + 8 * ITEM_S)


async def test_partial_batch_is_prepared_just_in_time() -> None:
    s = one(PREPARE_S)
    for _ in range(80):  # until it knows what it takes to prepare one
        s.ask("m")
    await s.run(2.0)
    for _ in range(8):
        s.ask("m")
    await s.run(0.01)
    began = s.replicas[0].ran[-1]
    for _ in range(3):
        s.ask("m")
    await s.run(0.02)
    assert s.replicas[0].ran[-1] is began  # it may still grow
    s.ask("m")
    for _ in range(40):  # the engine sets itself a timer, which nothing else wakes it for
        await s.run(0.005)
    last = s.replicas[0].ran[-1]
    assert last.items == 4
    assert last.ends == pytest.approx(began.ends + 4 * ITEM_S)  # no gap between them


async def test_idle_replica_first_then_the_soonest_free() -> None:
    s = one(PREPARE_S, replicas=2)
    s.ask("m")
    await s.run(0.001)
    for _ in range(8):
        s.ask("m")
    await s.run(0.001)
    first, second = s.replicas
    assert [len(first.ran), len(second.ran)] == [1, 1]
    short, long = sorted(s.replicas, key=lambda each: each.ran[0].ends)
    for _ in range(8):
        s.ask("m")
    await s.run(0.001)
    assert [len(short.ran), len(long.ran)] == [2, 1]


@pytest.mark.parametrize("rare_s", [linear, lambda _: 0.001], ids=["per item", "per batch"])
async def test_flood_delays_another_model_by_two_batches(rare_s: Callable[[int], float]) -> None:
    batch_s = 0.5
    models = {"flooded": lambda _: batch_s, "rare": rare_s}
    s = simulation(models, [("flooded", "rare")] * 2, prepare_s=PREPARE_S)
    start = s.clock.now()
    for _ in range(1000):
        s.ask("flooded")
    for number in range(20):
        s.ask_at(start + 1.1 + 0.7 * number, "rare")
    for _ in range(320):
        await s.run(0.05)
    rare = [each for each in s.asked if each.model == "rare"]
    waits = [each.done_at - each.at for each in rare if each.done_at is not None]
    assert len(waits) == 20
    assert max(waits) < 2 * batch_s + PREPARE_S + 0.1  # one that runs, one that is prepared
    assert s.used_s("flooded") > 31.0


async def test_idle_slow_device_does_not_stop_prefetching() -> None:
    s = simulation({"m": linear}, [("m",)] * 2, speeds=(100.0, 1.0), prepare_s=0.001)
    fast, slow = s.replicas
    for _ in range(8):
        s.ask("m")
    await s.run(0.0001)
    assert len(fast.ran) == 1
    for _ in range(8):
        s.ask("m")
    await s.run(0.0001)
    assert [len(fast.ran), len(slow.ran)] == [2, 0]


async def test_busy_seconds_do_not_count_overlap_twice() -> None:
    s = one(PREPARE_S)
    for _ in range(400):
        s.ask("m")
    await s.run(2.0)
    labels = {"replica": "fake#0", "device": "cpu"}
    read = s.metrics.registry.get_sample_value
    busy_s = read("torchlane_replica_busy_seconds_total", labels) or 0.0
    assert 1.8 <= busy_s <= 2.0 + 1e-6


class TestReplicaThread:
    """A real replica, with a device that computes in a thread of its own."""

    @pytest.fixture(autouse=True)
    def launching(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(DEFAULT, "backend", LaunchingFake)

    async def test_next_batch_is_launched_while_one_runs(self) -> None:
        async with rig(max_batch_size=2) as r:
            r.backend.gate.clear()
            tasks = [r.start(n) for n in range(8)]
            await until(lambda: device(r).most_launched == 2 and bool(r.backend.batches))
            await turns()
            assert len(r.backend.batches) == 1  # the device computes one at a time
            r.backend.gate.set()
            assert [values(await task) for task in tasks] == [[2 * n] for n in range(8)]
            assert device(r).most_launched == 2
            assert r.backend.batches == [[0, 1], [2, 3], [4, 5], [6, 7]]

    async def test_lost_device_leaves_no_caller_waiting(self) -> None:
        lost = False

        def script(_: Arrays) -> None:
            if lost:
                raise DeviceLost("it is gone")

        async with rig(scripts=(script,), max_batch_size=2) as r:
            r.backend.gate.clear()
            tasks = [r.start(n) for n in range(4)]
            await until(lambda: device(r).most_launched == 2)
            lost = True
            r.backend.gate.set()
            answers = [values(await task)[0] for task in tasks]
            assert answers == ["backend_failed"] * 4

    async def test_abandoned_thread_fails_both_batches(self) -> None:
        async with rig(max_batch_size=2) as r:
            r.backend.gate.clear()
            tasks = [r.start(n) for n in range(4)]
            await until(lambda: device(r).most_launched == 2)
            assert r.replicas[0].give_up_thread(ReplicaError("it hangs"))
            answers = [values(await task)[0] for task in tasks]
            assert answers == ["backend_failed"] * 4
            assert not r.replicas[0].busy


def device(r: Rig) -> LaunchingFake:
    """The first backend."""
    backend = r.backend
    assert isinstance(backend, LaunchingFake)
    return backend


async def test_prepared_batch_moves_when_its_device_breaks() -> None:
    s = one(PREPARE_S, replicas=2)
    for _ in range(60):
        s.ask("m")
    await s.run(0.1)
    assert any(len(each.ran) > 1 for each in s.replicas)
    s.replicas[0].broken = True
    await s.run(5.0)
    assert [each.answer for each in s.asked] == [2 * each.number for each in s.asked]
