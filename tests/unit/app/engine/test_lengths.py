"""Items of different lengths: they share batches, and get the answers that they get alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import numpy as np
import pytest

from app.backends.base import Backend
from app.backends.fake import FakeBackend
from app.engine.batch_policy import BatchLimits
from app.engine.batch_runner import Contract
from app.engine.clock import ManualClock
from app.engine.engine import Engine, EngineConfig
from app.engine.replica import Replica
from app.errors import ModelError, NonFiniteOutput, Overloaded
from app.metrics import Metrics
from app.types import Arrays, BatchTimes, Device, Item, ModelId, Signature
from models.padding import padding_of
from models.tensors import Array, Dimension, TensorSpec
from tests.unit.app.engine.harness import FAR, until

MODEL = ModelId("sums", 1)
SEQ = Dimension(name="seq", least=1, most=512, mask="mask")
INPUTS = (
    TensorSpec(name="x", dtype="float32", shape=(-1, -1), dimensions=(SEQ,), fill=99),
    TensorSpec(name="mask", dtype="int64", shape=(-1, -1), dimensions=(SEQ,)),
)
OUTPUTS = (
    TensorSpec(name="sum", dtype="float32", shape=(-1,)),
    TensorSpec(
        name="each", dtype="float32", shape=(-1, -1), dimensions=(Dimension(name="seq", most=512),)
    ),
)
PADDING = padding_of(INPUTS, OUTPUTS)
CONTRACT = Contract(("sum", "each"), lambda _: None, lambda outputs: outputs, PADDING)
SIGNATURE: Signature = (("x", "<f4", (-1,)), ("mask", "<i8", (-1,)))
BAD = -1.0
FLAT: BatchTimes = {4: {1: 0.010, 64: 0.010}, 256: {1: 0.010, 64: 0.010}}


def item(*numbers: float) -> Item:
    x = np.array(numbers, np.float32)
    return Item({"x": x, "mask": np.ones(len(x), np.int64)}, SIGNATURE, len(x))


def sums(inputs: Arrays) -> Arrays:
    """The sum of what is not padding; on BAD it fails, and of NaN it makes NaN in padding too."""
    x, mask = inputs["x"], inputs["mask"]
    if (x == BAD).any():
        raise ModelError("bad number")
    with np.errstate(divide="ignore"):
        each: Array = np.where(mask == 1, 2 * x, np.inf)  # padding may hold anything
    return {"sum": (x * mask).sum(axis=1), "each": each}


@contextlib.asynccontextmanager
async def engine(
    measured: BatchTimes, cache_bytes: int = 0
) -> AsyncIterator[tuple[Engine, FakeBackend]]:
    backend, replica = FakeBackend(sums), Replica("fake#0", Device("cpu"))
    config = EngineConfig(BatchLimits(64, 0.0), 1000, cache_bytes, None)
    made = Engine([replica], ManualClock(), Metrics(), config)
    replica.open()

    def nothing(*_: object) -> None:
        """Nothing has to be proved."""

    def load() -> Backend:
        return backend

    await replica.install(MODEL, load, nothing, nothing)
    made.publish(MODEL, "sums", CONTRACT, {replica.name: measured})
    yield made, backend
    await replica.close(1.0)


async def wave(made: Engine, backend: FakeBackend, *items: Item) -> list[object]:
    """Items of a request each, all of them while the replica is busy."""
    backend.gate.clear()
    before = len(backend.batches)
    running = asyncio.create_task(made.predict(MODEL, [item(123.0)], FAR))
    await until(lambda: len(backend.batches) > before)
    tasks = [asyncio.create_task(made.predict(MODEL, [each], FAR)) for each in items]
    await asyncio.sleep(0)
    backend.gate.set()
    await running
    return [(await task).outcomes[0] for task in tasks]


async def test_different_lengths_share_a_batch() -> None:
    async with engine(FLAT) as (made, backend):
        outcomes = await wave(made, backend, item(1, 2, 3), item(5), item(7, 8))
        assert backend.batches[1:] == [[1, 5, 7]]
    for outcome, (total, each) in zip(
        outcomes, [(6, [2, 4, 6]), (5, [10]), (15, [14, 16])], strict=True
    ):
        assert isinstance(outcome, dict)
        assert outcome["sum"] == total
        assert outcome["each"].tolist() == each


async def test_expensive_padding_separates_the_batches() -> None:
    by_token: BatchTimes = {n: {i: 0.001 * n * i for i in (1, 4, 64)} for n in (1, 16, 256)}
    async with engine(by_token) as (made, backend):
        await wave(made, backend, item(1), item(*[2] * 200), item(3), item(*[4] * 200))
        assert sorted(backend.batches[1:]) == [[1, 3], [2, 4]]


async def test_non_finite_padding_is_ignored() -> None:
    async with engine(FLAT) as (made, backend):
        good, bad = await wave(made, backend, item(1, 2), item(np.nan))
    assert isinstance(good, dict)
    assert isinstance(bad, NonFiniteOutput)


@pytest.mark.parametrize(("length", "accepted"), [(4, 50), (256, 2)])
async def test_admission_counts_lengths(length: int, accepted: int) -> None:
    measured: BatchTimes = {n: {i: 0.0001 * n * i for i in (1, 4)} for n in (4, 256)}
    async with engine(measured) as (made, backend):
        backend.gate.clear()
        running = asyncio.create_task(made.predict(MODEL, [item(0.5)], FAR))
        await until(lambda: len(backend.batches) == 1)
        submissions = []
        for number in range(50):
            with contextlib.suppress(Overloaded):
                one = item(*[number + 1] * length)
                submissions.append(made.submit(MODEL, [one], made.now() + 0.060))
        backend.gate.set()
        await running
        for each in submissions:
            await each.settled()
        assert len(submissions) == accepted


async def test_items_with_equal_prefixes_differ() -> None:
    async with engine(FLAT, cache_bytes=1 << 20) as (made, _):
        answers = [
            await made.predict(MODEL, [each], FAR) for each in (item(1), item(1, 0), item(1))
        ]
    assert [len(answer.outcomes[0]["each"]) for answer in answers] == [1, 2, 1]  # type: ignore[index]
    assert [answer.cache.hit for answer in answers] == [0, 0, 1]
