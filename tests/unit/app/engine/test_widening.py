"""Which lengths share a batch."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from app.engine.batch_cost import BatchCost
from app.engine.queue import ShapeView
from app.engine.widening import widened
from app.types import Signature

SIGNATURE: Signature = (("ids", "<i8", (-1,)),)
OTHER: Signature = (("ids", "<i8", (-1,)), ("type", "<i8", (-1,)))
SIZES = (1, 2, 4, 8, 16, 32, 64)
LENGTHS = (4, 16, 64, 256)


def cost(fixed_s: float, token_s: float) -> BatchCost:
    """A batch takes `fixed_s`, and `token_s` for each of its tokens, padding included."""
    return BatchCost(64, {n: {i: fixed_s + token_s * n * i for i in SIZES} for n in LENGTHS})


FIXED = cost(0.010, 0.0)  # such as a GPU that is far from full
IN_PROPORTION = cost(0.0, 0.001)  # nothing is gained by a batch
BETWEEN = cost(0.003, 0.00022)  # a sentence encoder on a CPU


def view(
    length: int, waiting: int, due_at: float = 9.0, signature: Signature = SIGNATURE
) -> ShapeView:
    return ShapeView(((signature, length),), length, waiting, 1.0, due_at, 100.0)


def lengths(first: int, waiting: Mapping[int, int], of: BatchCost, share: float = 1.0) -> list[int]:
    """The lengths that share a batch with the first."""
    views = {length: view(length, count) for length, count in waiting.items()}
    wide = widened(views[first], list(views.values()), of, share)
    assert wide.groups[0] == views[first].groups[0]
    assert wide.length == max(length for _, length in wide.groups)
    assert wide.waiting == sum(waiting[length] for _, length in wide.groups)
    return sorted(length for _, length in wide.groups)


def test_fixed_batch_cost_puts_all_lengths_together() -> None:
    assert lengths(16, {4: 1, 16: 2, 20: 1, 60: 1}, FIXED) == [4, 16, 20, 60]


def test_proportional_cost_pads_nothing() -> None:
    assert lengths(16, {4: 1, 16: 2, 20: 1, 60: 1}, IN_PROPORTION) == [16]


@pytest.mark.parametrize(
    ("waiting", "together"),
    [
        ({10: 1, 20: 1}, [10, 20]),  # 11.8 ms, not 5.2 + 7.4
        ({16: 1, 18: 1, 200: 1}, [16, 18]),
        ({16: 8, 200: 1}, [16]),
        ({16: 8, 64: 8}, [16]),
    ],
)
def test_padding_cost_is_weighed_against_batch_cost(
    waiting: dict[int, int], together: list[int]
) -> None:
    assert lengths(min(waiting), waiting, BETWEEN) == together


def test_first_length_always_stays_in_the_batch() -> None:
    assert 60 in lengths(60, {16: 30, 60: 1}, BETWEEN)


def test_lengths_that_do_not_fit_are_excluded() -> None:
    assert lengths(16, {12: 5, 16: 64}, FIXED) == [16]


def test_other_signatures_share_no_batch() -> None:
    first = view(16, 1)
    assert widened(first, [first, view(20, 1, signature=OTHER)], FIXED) == first


def test_nothing_is_padded_without_measurements() -> None:
    first = view(16, 1)
    assert widened(first, [first, view(20, 1)], BatchCost(64, {})) == first
