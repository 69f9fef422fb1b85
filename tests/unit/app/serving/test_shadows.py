"""Which items are copied for another version, and how its answers compare."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from app.registry.releases import Shadow
from app.serving.shadows import Sampler, compared
from app.types import Arrays, Item
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
