"""How long a batch will take, from what batches took."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.batch_cost import BatchCost
from app.types import BatchTimes

SIZES = (1, 2, 4, 8, 16, 32, 64)
LINEAR = {size: 0.007 * size for size in SIZES}
FLAT = {size: 0.020 + 0.0005 * size for size in SIZES}
AWAKE = {1: 0.0075, 2: 0.0128, 4: 0.0251, 8: 0.0470}  # one alone woke the core
SOME = {1: 0.0065, 2: 0.0125, 4: 0.0248, 8: 0.0490}  # larger ones gain a little: 4 to 6 %


def cost_of(largest: int, measured: Mapping[int, float]) -> BatchCost:
    """The cost of a model that pads nothing."""
    return BatchCost(largest, {0: measured})


def test_cost_is_zero_before_measurements() -> None:
    cost = cost_of(64, {})
    assert [cost.expected_s(items) for items in (1, 64)] == [0, 0]
    assert cost.full() == (64, 0)
    assert cost.batch_size(0.001) == 64


def test_interpolation_between_and_beyond_sizes() -> None:
    cost = cost_of(64, {2: 0.010, 8: 0.040})
    assert cost.expected_s(2) == 0.010
    assert cost.expected_s(5) == pytest.approx(0.025)
    assert cost.expected_s(8) == 0.040
    assert cost.expected_s(1) == 0.010
    assert cost.expected_s(64) == cost.full()[1] == pytest.approx(0.320)


@pytest.mark.parametrize("slower", [0.5, 1.3, 4.0])
def test_every_batch_corrects_all_sizes(slower: float) -> None:
    cost = cost_of(64, LINEAR)
    for _ in range(80):
        cost.took(8, slower * LINEAR[8])
    for items, seconds in LINEAR.items():
        assert cost.expected_s(items) == pytest.approx(slower * seconds, rel=0.01)


@pytest.mark.parametrize("factor", [1e-6, 0.01, 30.0, 1e6])
def test_three_outliers_in_a_row_are_a_shift(factor: float) -> None:
    cost = cost_of(64, LINEAR)
    for items in (8, 2, 8):
        cost.took(items, LINEAR[items] * factor)
    for items, seconds in LINEAR.items():
        assert cost.expected_s(items) == pytest.approx(seconds * factor, rel=0.01)
    for _ in range(60):
        cost.took(8, 0.056 * factor)
    assert cost.deviation < 0.1


@pytest.mark.parametrize("stalled", [(3.0, None), (0.010, 3.0)])
def test_a_stall_of_all_replicas_counts_as_one_outlier(stalled: tuple[float, float | None]) -> None:
    cost = cost_of(8, {8: 0.010})
    for replica in range(16):
        cost.took(8, *stalled, began=1.0 + replica / 1000, ended=4.0 + replica / 1000)
    assert cost.expected_s(8) <= 0.010 * 1.4 + 1e-9
    for number in range(1, 3):  # a slowdown goes on: these batches began after the stall
        cost.took(8, *stalled, began=4.0 * number, ended=4.0 * number + 3)
    assert cost.expected_s(8) >= 3.0


def test_overhead_is_the_same_for_every_size() -> None:
    cost = cost_of(64, FLAT)
    for _ in range(80):
        cost.took(2, FLAT[2], 0.1)
    for items, seconds in FLAT.items():
        assert cost.expected_s(items) == pytest.approx(seconds + 0.1, rel=0.01)
    for _ in range(80):
        cost.took(64, FLAT[64], 0.0)
    for items, seconds in FLAT.items():
        assert cost.expected_s(items) == pytest.approx(seconds, rel=0.01)


def test_three_stalls_are_a_shift() -> None:
    cost = cost_of(64, LINEAR)
    cost.took(8, LINEAR[8], 1000.0)
    assert cost.expected_s(8) == pytest.approx(LINEAR[8] * 1.4)
    cost = cost_of(64, LINEAR)
    for seconds in (9.0, 3.0, 70.0):
        cost.took(8, LINEAR[8], seconds)
    assert cost.expected_s(1) == pytest.approx(LINEAR[1] + 3.0)


@pytest.mark.parametrize(
    ("measured", "allowed_s", "size"),
    [
        (LINEAR, 30.0, 64),  # no pressure
        (LINEAR, 0.1, 1),  # larger ones are no more efficient, and answer later
        (LINEAR, 0.001, 1),  # it cannot be met, but one at a time comes nearest
        (FLAT, 0.1, 32),  # 64 take 52 ms: too long after another batch
        (FLAT, 0.07, 16),
        (FLAT, 10.0, 64),
        (FLAT, 0.0409, 8),  # with half of it for 2
        (FLAT, 0.042, 8),  # and for none: 8 take hardly longer than one
        (AWAKE, 0.1, 2),  # 4 seem to gain a twentieth, and 8 a seventh
        (SOME, 0.1, 2),
    ],
)
def test_batches_are_smaller_with_less_time(
    measured: dict[int, float], allowed_s: float, size: int
) -> None:
    assert cost_of(64, measured).batch_size(allowed_s) == size


@given(
    st.dictionaries(st.sampled_from([1, 2, 4, 8, 12]), st.floats(1e-6, 10)),
    st.lists(
        st.tuples(st.integers(1, 12), st.floats(0, 100), st.none() | st.floats(0, 100)), max_size=60
    ),
    st.floats(-1, 100),
)
def test_estimates_always_stay_in_range(
    measured: dict[int, float], took: list[tuple[int, float, float | None]], allowed_s: float
) -> None:
    cost = cost_of(12, measured)
    for items, seconds, overhead_s in took:
        cost.took(items, seconds, overhead_s)
        assert all(cost.expected_s(n) > 0 for n in range(1, 13))
        assert cost.deviation >= 0
        assert 1 <= cost.batch_size(allowed_s) <= 12


class TestLengths:
    """Of items of 4 and of 16 tokens, 1 ms a batch and 0.1 ms a token; long batches stop early."""

    MEASURED: ClassVar[BatchTimes] = {
        4: {n: 0.001 + 0.0004 * n for n in (1, 4, 16, 64)},
        16: {n: 0.001 + 0.0016 * n for n in (1, 4, 16)},
    }

    def test_cost_is_interpolated_between_lengths(self) -> None:
        cost = BatchCost(64, self.MEASURED)
        assert cost.expected_s(4, 4) == pytest.approx(0.0026)
        assert cost.expected_s(4, 16) == pytest.approx(0.0074)
        assert cost.expected_s(4, 10) == pytest.approx(0.0050)
        assert cost.expected_s(4, 32) == pytest.approx(0.0148)
        assert cost.expected_s(4, 1) == cost.expected_s(4, 4)

    def test_longer_items_make_smaller_batches(self) -> None:
        cost = BatchCost(64, self.MEASURED)
        assert [cost.most_of(length) for length in (1, 4, 8, 16, 32, 300)] == [64, 64, 32, 16, 8, 1]
        assert cost.batch_size(100.0, 4) == 64
        assert cost.batch_size(100.0, 16) == 16
        assert cost.full(16)[1] == pytest.approx(0.0266)

    def test_out_of_memory_limits_longer_items_proportionally(self) -> None:
        cost = BatchCost(64, {8: {64: 0.1}, 512: {64: 1.0}})
        cost.out_of_memory(16, 0.0, length=512)
        assert [cost.most_of(length) for length in (512, 256, 16, 8)] == [8, 16, 64, 64]
        cost.turn(60.0)
        assert cost.most_of(512) == 16
        for minute in range(2, 6):
            cost.turn(60.0 * minute)
        assert cost.most_of(512) == 64

    def test_longer_lengths_scale_from_one_measured_length(self) -> None:
        cost = BatchCost(64, {8: {1: 0.002, 64: 0.064}})
        assert cost.expected_s(1, 512) == pytest.approx(64 * 0.002)
        assert cost.most_of(512) == 1
