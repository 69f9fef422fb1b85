"""The ten laws of the engine, a named test each (and more where a law has several sides)."""

from __future__ import annotations

import asyncio
import gc
import random

import numpy as np
import pytest

from app.backends.fake import FakeBackend, Step
from app.engine.cache import PredictionCache, cost_bytes
from app.engine.keys import KeyMaker
from app.errors import (
    DeadlineExceeded,
    DeviceLost,
    ModelError,
    ModelNotReady,
    Overloaded,
    PayloadTooLarge,
    ReplicaError,
    ShuttingDown,
)
from app.types import Answer, Arrays, Item, ModelId
from tests.unit.app.engine.harness import (
    CONTRACT,
    DEFAULT,
    FAR,
    MODEL,
    POISON,
    fail_on_poison,
    item,
    rig,
    turns,
    until,
    values,
)
from tests.unit.app.engine.launching import LaunchingFake
from tests.unit.app.engine.tiers import ScriptedTier


@pytest.fixture(autouse=True, params=["separate", "blocking", "launching", "asked"])
def everywhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the event loop stands still, batches are prefetched, or a cache is asked."""
    if request.param == "asked":
        monkeypatch.setattr(DEFAULT, "tier", ScriptedTier)
        monkeypatch.setattr(DEFAULT, "batch_s", {1: 1e-6, 64: 1e-6})
    if request.param == "launching":
        monkeypatch.setattr(DEFAULT, "backend", LaunchingFake)
    if request.param == "blocking":
        monkeypatch.setattr(DEFAULT, "block_s", 0.005)
        monkeypatch.setattr(DEFAULT, "batch_s", {1: 1e-6, 64: 1e-6})


@pytest.fixture
def one_batch_at_a_time(everywhere: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """For what counts the items that wait behind one batch: prefetching takes one more of them."""
    monkeypatch.setattr(DEFAULT, "backend", FakeBackend)


async def test_law_1_every_accepted_item_gets_exactly_one_outcome() -> None:
    rng = random.Random(5)
    async with rig(scripts=(fail_on_poison, fail_on_poison), queue_limit=2000) as r:
        requests = [
            [float(rng.randrange(200)) for _ in range(rng.randrange(1, 20))] for _ in range(150)
        ]
        tasks = [r.start(*numbers) for numbers in requests]
        answers = await asyncio.gather(*tasks)
    for numbers, answer in zip(requests, answers, strict=True):
        wanted = ["backend_failed" if n == POISON else 2 * n for n in numbers]
        assert values(answer) == wanted
    assert r.metric("torchlane_queue_depth_items") == 0


async def test_law_2_cancellation_never_changes_other_outcomes() -> None:
    async with rig() as r:
        r.backend.gate.clear()
        busy = r.start(0)  # holds the replica
        await until(lambda: len(r.backend.batches) == 1)
        mate, cancelled, sharer = r.start(1, 2), r.start(2, 3), r.start(3, 4)
        await turns()
        cancelled.cancel()
        await turns()
        r.backend.gate.set()
        assert values(await busy) == [0]
        assert values(await mate) == [2, 4]
        assert values(await sharer) == [6, 8]
        with pytest.raises(asyncio.CancelledError):
            await cancelled


async def test_law_2_cancellation_during_a_batch_affects_no_other() -> None:
    async with rig() as r:
        r.backend.gate.clear()
        cancelled, mate = r.start(1), r.start(2)
        await until(lambda: r.backend.batches == [[1, 2]])
        cancelled.cancel()
        await turns()
        r.backend.gate.set()
        assert values(await mate) == [4]
        assert await r.ask(5) == [10]


async def test_law_3_model_error_is_split_to_the_culprit() -> None:
    async with rig(scripts=(fail_on_poison,)) as r:
        answers = await r.ask(1, 2, POISON, 4, 5, 6, 7)
        assert answers == [2, 4, "backend_failed", 8, 10, 12, 14]
        assert r.faults == []
        assert r.metric("torchlane_batch_splits_total") == 1


async def test_law_3_replica_error_moves_items_once() -> None:
    broken = _always(ReplicaError("broken"))
    async with rig(scripts=(broken, None)) as r:
        assert await r.ask(1, 2, 3) == [2, 4, 6]
        assert [name for name, _ in r.faults] == ["fake#0"]
        assert r.metric("torchlane_items_moved_total") > 0
        assert await r.ask(4) == [8]  # and the sick one gets no more work


async def test_law_3_moved_items_keep_their_order() -> None:
    broken = _always(ReplicaError("broken"))
    async with rig(scripts=(None, broken), max_batch_size=4) as r:
        r.backends[0].gate.clear()
        holding = r.start(0)
        await until(lambda: r.backends[0].batches == [[0]])
        moved = r.start(1, 2, 3, 4)
        await until(lambda: len(r.faults) == 1)
        r.backends[0].gate.set()
        await asyncio.gather(holding, moved)
        assert r.backends[0].batches == [[0], [1, 2, 3, 4]]


async def test_law_3_items_never_move_twice() -> None:
    broken = _always(ReplicaError("broken"))
    async with rig(scripts=(broken, broken, None)) as r:
        r.backends[2].gate.clear()
        holding = r.start(100.0, 101.0, 102.0)  # one each
        answer = asyncio.create_task(_values(holding))
        await until(lambda: len(r.faults) == 2)
        r.backends[2].gate.set()
        outcomes = await answer
        assert len(outcomes) == 3
        assert all(o in (200.0, 202.0, 204.0, "backend_failed") for o in outcomes)
        tried = [value for backend in r.backends for batch in backend.batches for value in batch]
        assert max(tried.count(value) for value in (100.0, 101.0, 102.0)) <= 2


async def test_law_3_golden_example_probes_a_failing_replica() -> None:
    broken = _always(ModelError("everything fails"))
    async with rig(scripts=(broken, None), max_batch_size=4) as r:
        r.backends[1].gate.clear()
        decoy = r.start(50.0)
        await turns()
        answers = r.start(1, 2, 3, 4)
        await until(lambda: len(r.faults) == 1)
        r.backends[1].gate.set()
        assert values(await answers) == [2, 4, 6, 8]
        assert values(await decoy) == [100.0]
        assert "golden" in str(r.faults[0][1])


async def test_law_3_two_culprits_keep_the_replica_ready() -> None:
    def fail_on_large(inputs: Arrays) -> Arrays | None:
        if (inputs["x"] > 10).any():
            raise ModelError("too large")
        return None

    async with rig(scripts=(fail_on_large,)) as r:
        assert await r.ask(1, 20, 2, 30) == [2, "backend_failed", 4, "backend_failed"]
        assert r.faults == []
        assert await r.ask(3) == [6]


async def test_law_3_lost_device_fails_its_items() -> None:
    async with rig(scripts=(_always(DeviceLost("sticky")), None)) as r:
        r.backends[1].gate.clear()
        assert await r.ask(1) == ["backend_failed"]
        assert isinstance(r.faults[0][1], DeviceLost)


async def test_law_4_wrong_row_count_never_shifts_answers() -> None:
    def loses_a_row(inputs: Arrays) -> Arrays | None:
        return {"value": inputs["x"][1:] * 2} if len(inputs["x"]) > 1 else None

    def adds_a_row(inputs: Arrays) -> Arrays | None:
        doubled = inputs["x"] * 2
        return {"value": np.concatenate([doubled[:1], doubled])}

    async with rig(scripts=(loses_a_row,)) as r:
        assert await r.ask(1, 2, 3) == [2, 4, 6]  # split down to single items, which are right
    async with rig(scripts=(adds_a_row,)) as r:
        assert await r.ask(1, 2, 3) == ["backend_failed"] * 3


async def test_law_4_wrong_outputs_are_a_backend_error() -> None:
    async with rig(scripts=(lambda _: {},)) as r:
        assert await r.ask(1) == ["backend_failed"]


async def test_law_1_unexpected_exception_fails_its_items() -> None:
    def odd(inputs: Arrays) -> Arrays | None:
        raise MemoryError("in the model")

    async with rig(scripts=(odd,)) as r:
        assert await r.ask(1, 2) == ["backend_failed"] * 2


async def test_law_5_too_many_items_are_not_retryable() -> None:
    async with rig(queue_limit=3) as r:
        with pytest.raises(PayloadTooLarge, match="split"):
            await r.ask(1, 2, 3, 4)


@pytest.mark.usefixtures("one_batch_at_a_time")
async def test_law_5_full_queue_rejects_the_whole_request() -> None:
    async with rig(queue_limit=3, max_batch_size=1) as r:
        r.backend.gate.clear()
        running = r.start(0)
        await until(lambda: len(r.backend.batches) == 1)
        waiting = [r.start(1), r.start(2)]
        await turns()
        with pytest.raises(Overloaded) as refused:
            await r.ask(3, 4)
        assert refused.value.retry_after_s >= 0
        assert r.metric("torchlane_queue_depth_items") == 2  # nothing of it was queued
        last = r.start(5, 1)  # one joins, one fits
        await turns()
        with pytest.raises(Overloaded):
            await r.ask(6)
        r.backend.gate.set()
        assert [values(await task) for task in (running, *waiting, last)] == [
            [0],
            [2],
            [4],
            [10, 2],
        ]


async def test_law_5_too_many_bytes_are_not_retryable() -> None:
    async with rig(queue_limit_bytes=12) as r:  # three numbers
        with pytest.raises(PayloadTooLarge, match="16 bytes, but the queue limit is 12; split"):
            await r.ask(1, 2, 3, 4)
        assert r.metric("torchlane_queue_bytes") == 0
        assert await r.ask(1, 2, 3) == [2, 4, 6]


@pytest.mark.usefixtures("one_batch_at_a_time")
async def test_law_5_byte_limit_rejects_the_whole_request() -> None:
    async with rig(queue_limit_bytes=12, max_batch_size=1) as r:
        assert r.metric("torchlane_queue_limit_bytes") == 12
        r.backend.gate.clear()
        running = r.start(0)
        await until(lambda: len(r.backend.batches) == 1)
        waiting = [r.start(1), r.start(2)]
        await turns()
        with pytest.raises(Overloaded, match="8 bytes are queued and 8 more") as refused:
            await r.ask(3, 4)
        assert refused.value.retry_after_s >= 0
        assert r.metric("torchlane_queue_depth_items") == 2  # nothing of it was queued
        assert r.metric("torchlane_queue_bytes") == 8
        with pytest.raises(Overloaded, match="do not fit"):  # one item, as large as two
            r.engine.submit(MODEL, [item(5, size=2)], r.clock.now() + FAR)
        last = r.start(5, 1)  # one joins, one fits
        await turns()
        with pytest.raises(Overloaded):
            await r.ask(6)
        r.backend.gate.set()
        assert [values(await task) for task in (running, *waiting, last)] == [
            [0],
            [2],
            [4],
            [10, 2],
        ]
        assert r.metric("torchlane_queue_bytes") == 0


async def test_law_5_abandoned_requests_leave_nothing_behind() -> None:
    async with rig(queue_limit=10) as r:
        r.backend.gate.clear()
        running = r.start(0)
        await until(lambda: len(r.backend.batches) == 1)
        keeper = r.start(1)
        await turns()
        gc.collect()
        before = sum(type(o) is Item for o in gc.get_objects())
        for number in range(200):
            task = r.start(1000.0 + number)
            await turns(3)
            task.cancel()
            await turns(3)
        gc.collect()
        assert sum(type(o) is Item for o in gc.get_objects()) - before < 100
        assert r.metric("torchlane_queue_depth_items") == 1
        r.backend.gate.set()
        assert values(await running) == [0]
        assert values(await keeper) == [2]


async def test_law_6_cancelled_and_expired_items_cost_no_compute() -> None:
    async with rig() as r:
        r.backend.gate.clear()
        running = r.start(0)
        await until(lambda: len(r.backend.batches) == 1)
        cancelled, expiring, staying = r.start(1), r.start(2, within=1.0), r.start(3)
        await turns()
        cancelled.cancel()
        r.clock.advance(2.0)
        with pytest.raises(DeadlineExceeded):
            await expiring
        assert r.metric("torchlane_queue_depth_items") == 1
        r.backend.gate.set()
        assert values(await running) == [0]
        assert values(await staying) == [6]
        assert r.backend.batches == [[0], [3]]


async def test_law_6_expired_request_is_rejected_on_arrival() -> None:
    async with rig() as r:
        with pytest.raises(DeadlineExceeded):
            await r.ask(1, within=0.0)
        assert r.backend.batches == []


async def test_law_7_idle_replica_starts_without_a_wait() -> None:
    async with rig() as r:
        assert await r.ask(1) == [2]  # the clock stands still: no wait was needed


async def test_law_7_wait_counts_from_the_oldest_item() -> None:
    async with rig(batch_wait_s=1.0) as r:
        first = r.start(1)
        await turns()
        r.clock.advance(0.9)
        second = r.start(2)
        await turns()
        assert r.backend.batches == []
        r.clock.advance(0.1)  # one second after the first, a tenth after the second
        assert values(await first) == [2]
        assert values(await second) == [4]
        assert r.backend.batches == [[1, 2]]


async def test_law_7_a_full_batch_does_not_wait() -> None:
    async with rig(batch_wait_s=1.0, max_batch_size=2) as r:
        assert await r.ask(1, 2) == [2, 4]


async def test_law_8_a_flight_has_no_leader() -> None:
    async with rig() as r:
        r.backend.gate.clear()
        running = r.start(0)
        await until(lambda: len(r.backend.batches) == 1)
        first, second = r.start(7), r.start(7)
        await turns()
        first.cancel()
        await turns()
        r.backend.gate.set()
        assert values(await second) == [14]
        assert values(await running) == [0]
        assert r.backend.batches == [[0], [7]]


async def test_law_8_flight_ends_with_its_last_waiter() -> None:
    async with rig() as r:
        r.backend.gate.clear()
        running = r.start(0)
        await until(lambda: len(r.backend.batches) == 1)
        both = [r.start(7), r.start(7)]
        await turns()
        for task in both:
            task.cancel()
        await turns()
        assert r.metric("torchlane_queue_depth_items") == 0
        r.backend.gate.set()
        assert values(await running) == [0]
        await turns()
        assert r.backend.batches == [[0]]


async def test_law_8_each_waiter_keeps_its_own_deadline() -> None:
    async with rig() as r:
        r.backend.gate.clear()
        running = r.start(0)
        await until(lambda: len(r.backend.batches) == 1)
        patient, hasty = r.start(7, within=10.0), r.start(7, within=1.0)
        await turns()
        r.clock.advance(5.0)
        with pytest.raises(DeadlineExceeded):
            await hasty
        r.backend.gate.set()
        assert values(await patient) == [
            14
        ]  # expiry is not shared; the flight lives with the latest
        assert values(await running) == [0]


@pytest.mark.usefixtures("one_batch_at_a_time")
async def test_law_8_flight_is_queued_by_earliest_deadline() -> None:
    async with rig(max_batch_size=1) as r:
        r.backend.gate.clear()
        running = r.start(0)
        await until(lambda: len(r.backend.batches) == 1)
        tasks = [r.start(1, within=50), r.start(2, within=60), r.start(3, within=70)]
        await turns()
        tasks.append(r.start(3, within=5))  # a hasty one joins the last in the queue
        await turns()
        r.backend.gate.set()
        await asyncio.gather(running, *tasks)
        assert r.backend.batches == [[0], [3], [1], [2]]


async def test_law_8_backend_errors_are_shared_and_never_cached() -> None:
    async with rig(scripts=(fail_on_poison,), cache_bytes=1_000_000) as r:
        r.backend.gate.clear()
        running = r.start(0)
        await until(lambda: len(r.backend.batches) == 1)
        both = [r.start(POISON), r.start(POISON)]
        await turns()
        r.backend.gate.set()
        assert [values(await task) for task in both] == [["backend_failed"]] * 2
        assert values(await running) == [0]
        r.backend.script = None
        assert await r.ask(POISON) == [2 * POISON]


async def test_law_8_abandoned_running_work_is_joined_and_cached() -> None:
    async with rig(cache_bytes=1_000_000) as r:
        r.backend.gate.clear()
        gone = r.start(7)
        await until(lambda: r.backend.batches == [[7]])
        gone.cancel()
        await turns()
        joined = r.start(7)
        await turns()
        r.backend.gate.set()
        assert values(await joined) == [14]
        answer = await r.start(7)
        assert (answer.cache.hit, values(answer)) == (1, [14])
        assert r.backend.batches == [[7]]


async def test_law_9_cached_values_are_immutable_copies() -> None:
    async with rig(cache_bytes=1_000_000) as r:
        first = await r.start(1, 2)
        again = await r.start(1)
        assert again.cache.hit == 1
        computed, cached = first.outcomes[0], again.outcomes[0]
        assert isinstance(computed, dict)
        assert isinstance(cached, dict)
        np.testing.assert_array_equal(cached["value"], computed["value"])
        assert not np.shares_memory(cached["value"], computed["value"])  # no batch is kept alive
        for array in (computed["value"], cached["value"]):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0


def test_law_9_oversized_value_is_not_cached() -> None:
    small, large = {"v": np.zeros(8)}, {"v": np.zeros(100_000)}
    cache = PredictionCache(10_000, None, timer=lambda: 0.0)
    cache.put(b"s" * 32, small)
    cache.put(b"l" * 32, large)
    assert cache.get(b"l" * 32) is None
    kept = cache.get(b"s" * 32)
    assert kept is not None
    np.testing.assert_array_equal(kept["v"], small["v"])
    assert cache.used_bytes == cost_bytes(b"s" * 32, small)


def test_law_9_keys_cover_model_and_input() -> None:
    plain = np.arange(6, dtype=np.float32)
    one, other = KeyMaker("digest-1:script"), KeyMaker("digest-2:script")
    keys = {
        one.key(Item({"x": plain})),
        other.key(Item({"x": plain})),
        KeyMaker("digest-1:int8").key(Item({"x": plain})),
        one.key(Item({"y": plain})),
        one.key(Item({"x": plain.view(np.int32)})),
        one.key(Item({"x": plain.reshape(2, 3)})),
        one.key(Item({"x": plain + 1})),
        one.key(Item({"x": plain[:3], "y": plain[3:]})),
    }
    assert len(keys) == 8
    assert one.key(Item({"x": plain.copy()})) in keys


async def test_law_10_drain_rejects_new_and_finishes_old_work() -> None:
    async with rig() as r:
        r.backend.gate.clear()
        running = r.start(1)
        await until(lambda: len(r.backend.batches) == 1)
        waiting = r.start(2)
        await turns()
        draining = asyncio.create_task(r.engine.drain(10.0))
        await turns()
        with pytest.raises(ShuttingDown):
            await r.ask(3)
        assert not draining.done()
        r.backend.gate.set()
        assert await draining is True
        assert values(await running) == [2]
        assert values(await waiting) == [4]


async def test_law_10_work_beyond_the_budget_fails() -> None:
    async with rig() as r:
        r.backend.gate.clear()
        stuck = r.start(1)
        await until(lambda: len(r.backend.batches) == 1)
        assert await r.engine.drain(0.05) is False
        with pytest.raises(ShuttingDown):
            await stuck
        r.backend.gate.set()


async def test_new_work_is_rejected_without_a_replica() -> None:
    async with rig(scripts=(_always(ReplicaError("broken")),)) as r:
        assert await r.ask(1) == ["backend_failed"]  # nowhere to move to
        with pytest.raises(ModelNotReady):
            await r.ask(2)


@pytest.mark.usefixtures("one_batch_at_a_time")
async def test_models_on_one_replica_take_turns() -> None:
    other = ModelId("other", 1)
    async with rig(max_batch_size=1) as r:
        order: list[str] = []
        r.backend.script = lambda _: order.append("double")
        second = type(r.backend)(lambda _: order.append("other"))
        await r.replicas[0].install(other, lambda: second)
        r.engine.publish(other, "other:fake", CONTRACT)
        r.backend.gate.clear()
        flood = [r.start(float(number)) for number in range(6)]
        await until(lambda: len(r.backend.batches) == 1)
        late = asyncio.create_task(r.engine.predict(other, [item(9)], r.clock.now() + FAR))
        await turns()
        r.backend.gate.set()
        await asyncio.gather(late, *flood)
        assert order.index("other") <= 2  # not behind the whole flood


async def test_only_items_of_one_shape_share_a_batch() -> None:
    async with rig() as r:
        r.backend.gate.clear()
        running = r.start(0)
        await until(lambda: len(r.backend.batches) == 1)
        items = [item(1), item(2, size=3), item(3), item(4, size=3)]
        mixed = asyncio.create_task(r.engine.predict(MODEL, items, r.clock.now() + FAR))
        await turns()
        r.backend.gate.set()
        assert values(await mixed) == [2, 4, 6, 8]
        assert values(await running) == [0]
        assert r.backend.batches[1:] == [[1, 3], [2, 4]]


def _always(error: Exception) -> Step:
    def step(_: Arrays) -> Arrays | None:
        raise error

    return step


async def _values(task: asyncio.Task[Answer]) -> list[float | str]:
    return values(await task)
