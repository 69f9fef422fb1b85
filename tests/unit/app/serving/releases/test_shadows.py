"""Which items are copied for another version, and how its answers compare."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from app.engine.copies import Copies
from app.errors import ItemFailed
from app.metrics import Metrics
from app.registry.releases import Shadow
from app.serving.releases import shadows
from app.serving.releases.differing import Differing
from app.serving.releases.shadows import Sampler, Shadows, compared
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
    """Takes 10 ms for each copy, which then fails."""

    is_idle = True

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.times: list[tuple[float, float]] = []  # of each copy: its begin and its end
        self.samplers: list[Copies] = []

    def now(self) -> float:
        return self.seconds

    def copy_to(self, _: ModelId, copies: Copies) -> None:
        self.samplers.append(copies)

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds

    async def predict(self, *_: object, **__: object) -> SimpleNamespace:
        began = self.seconds
        self.seconds += 0.01
        self.times.append((began, self.seconds))
        return SimpleNamespace(outcomes=(ItemFailed("no"),))


async def test_copies_take_a_tenth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, metrics, shadow = Engine(), Metrics(), Shadow(version=2, share=1.0)
    settings = SimpleNamespace(shadow=shadow, release=None)
    source, target = (
        SimpleNamespace(
            id=ModelId("m", version),
            digest=str(version),
            settings=settings,
            reads_as=lambda _: True,
        )
        for version in (1, 2)
    )
    loaded = SimpleNamespace(
        changes=0,
        models=lambda: [source, target],
        get=lambda _: source,
        find=lambda _: target,
        stage=lambda _: None,
    )
    made = Shadows(cast("Any", engine), cast("Any", loaded), metrics, Differing())
    monkeypatch.setattr(shadows, "WAIT_S", 0.55)

    def counted(result: str) -> float | None:
        labels = {"model": "m", "version": "2", "result": result}
        return metrics.registry.get_sample_value("torchlane_shadow_items_total", labels)

    made._look()
    (sampler,) = engine.samplers
    for _ in range(20):
        sampler.offer(Item({}), {})
    monkeypatch.setattr("app.serving.releases.shadows.asyncio.sleep", engine.sleep)
    while counted("dropped") is None:
        await made._turn()
    assert counted("failed") == len(engine.times) == 6  # each takes 10 ms of 100
    for (_, ended), (again, _) in itertools.pairwise(engine.times):
        assert again - ended == pytest.approx(0.09)
