"""The batch sizes up to which a model is warmed."""

from __future__ import annotations

import pytest

from app.backends.growth import LEAST_GAIN, SLOW_S, Growth


def tried(*item_ms: float) -> list[int]:
    """The sizes that are tried of 1, 2, 4 ...; `item_ms`: what an item takes at each of them."""
    growth, sizes = Growth(), []
    for power, ms in enumerate(item_ms):
        sizes.append(1 << power)
        if not growth.goes_on(sizes[-1], ms / 1000 * sizes[-1]):
            break
    return sizes


@pytest.mark.parametrize(
    ("item_ms", "largest"),
    [
        ([60] * 7, 4),  # bound by computing from the first item on
        ([60, 40, 30, 25, 22, 20, 19], 64),  # each size saves some
        ([24, 19, 18, 17.5, 17.5, 17.5, 17.5], 16),
        ([60, 75, 40, 40, 40, 40, 40], 16),  # one that was held up ends nothing
        ([0.5] * 7, 64),  # quick ones cost nothing to warm
        ([1000] * 7, 4),
    ],
)
def test_growth_stops_when_larger_batches_save_nothing(item_ms: list[float], largest: int) -> None:
    assert max(tried(*item_ms)) == largest


def test_saving_is_compared_with_the_best_so_far() -> None:
    growth, second_s = Growth(), 4 * SLOW_S * (1 - LEAST_GAIN) * 0.99
    assert growth.goes_on(1, 2 * SLOW_S)
    assert growth.goes_on(2, second_s)
    assert growth.goes_on(4, 2 * second_s)
    assert not growth.goes_on(8, 4 * second_s)
