"""Which items are copied for another version, and how its answers compare."""

from __future__ import annotations

import asyncio
import itertools
import time
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from app.errors import ItemFailed
from app.metrics import Metrics
from app.registry.releases import Shadow
from app.serving import shadows
from app.serving.differing import Pair
from app.serving.shadows import Sampler, Shadows, compared
from app.types import Arrays, Item, ModelId
from models.tensors import Tolerance

TOLERANCE = Tolerance(absolute=0.01, relative=0)
SCORES = np.array([0.2, 0.8], np.float32)


@pytest.mark.parametrize(
    ("actual", "result"),
    [
        ({"scores": SCORES + 0.005}, "agrees"),
        ({"scores": SCORES + 0.005, "more": SCORES}, "agrees"),
        ({"scores": np.array([0.4, 0.6], np.float32)}, "same_label"),
        ({"scores": np.array([0.6, 0.4], np.float32)}, "differs"),
        ({"scores": np.array([0.2, 0.8, 0.0], np.float32)}, "differs"),
        ({"logits": SCORES}, "differs"),
    ],
)
def test_how_predictions_compare(actual: Arrays, result: str) -> None:
    assert compared("scores", TOLERANCE, {"scores": SCORES}, actual) == result


def test_without_labels_numbers_must_agree() -> None:
    assert compared(None, TOLERANCE, {"y": SCORES}, {"y": SCORES * 2}) == "differs"
    assert compared(None, TOLERANCE, {"y": SCORES}, {"y": SCORES}) == "agrees"


def test_a_share_of_the_items_is_taken() -> None:
    class Taker:
        def __init__(self) -> None:
            self.items: list[Item] = []

        def take(self, _: object, __: object, item: Item, ___: Arrays) -> None:
            self.items.append(item)

    taker, numbers = Taker(), iter([0.1, 0.3, 0.2, 0.9])
    sampler = Sampler(
        cast("Any", taker), cast("Any", None), Shadow(version=3, share=0.25), lambda: next(numbers)
    )
    items = [Item({"x": np.full(1, value, np.float32)}) for value in range(4)]
    for item in items:
        sampler.offer(item, {})
    assert taker.items == [items[0], items[2]]


class Engine:
    """Takes 10 ms for each copy, which it then fails."""

    is_idle = True

    def __init__(self) -> None:
        self.times: list[tuple[float, float]] = []  # of each copy: its begin and its end

    def now(self) -> float:
        return time.monotonic()

    async def predict(self, *_: object, **__: object) -> SimpleNamespace:
        began = self.now()
        await asyncio.sleep(0.01)
        self.times.append((began, self.now()))
        return SimpleNamespace(outcomes=(ItemFailed("no"),))


async def test_copies_take_a_tenth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadows, "WAIT_S", 0.5)
    shadow, engine, metrics = Shadow(version=2, share=1.0), Engine(), Metrics()
    source, target = (
        cast("Any", SimpleNamespace(id=ModelId("m", version), digest=str(version)))
        for version in (1, 2)
    )
    loaded = SimpleNamespace(changes=-1, find=lambda _: target)
    differing = SimpleNamespace(write=lambda: asyncio.sleep(0))
    made = Shadows(cast("Any", engine), cast("Any", loaded), metrics, cast("Any", differing))
    made._followed = {source.id: Pair.of(source, target, shadow)}
    for _ in range(20):
        made.take(source, shadow, Item({}), {})
    following = asyncio.create_task(made.follow())

    def counted(result: str) -> float:
        return metrics.shadow_items.labels("m", "2", result)._value.get()

    async with asyncio.timeout(30):
        while counted("dropped") + counted("failed") < 20:
            await asyncio.sleep(0.01)
    following.cancel()
    assert counted("failed") == len(engine.times)
    assert 1 <= len(engine.times) <= 6  # half a second, and 0.1 s for each
    for (began, ended), (again, _) in itertools.pairwise(engine.times):
        assert again - ended >= shadows.REST * (ended - began) * 0.99
