"""How long a batch will take, by what batches took."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.batch_times import BatchTimes

LINEAR = {size: 0.007 * size for size in (1, 2, 4, 8, 16, 32, 64)}
FLAT = {size: 0.020 + 0.0005 * size for size in (1, 2, 4, 8, 16, 32, 64)}


def test_nothing_is_known_at_first() -> None:
    times = BatchTimes(64, {})
    assert [times.expected_s(items) for items in (1, 64)] == [0, 0]
    assert times.full_s == 0
    assert times.efficient(0.001) == 64


def test_between_two_sizes_it_grows_evenly_and_beyond_them_it_is_rather_too_long() -> None:
    times = BatchTimes(64, {2: 0.010, 8: 0.040})
    assert times.expected_s(2) == 0.010
    assert times.expected_s(5) == pytest.approx(0.025)
    assert times.expected_s(8) == 0.040
    assert times.expected_s(1) == 0.010
    assert times.expected_s(64) == times.full_s == pytest.approx(0.320)


@pytest.mark.parametrize("start", [{}, {1: 1.0, 64: 1.0}, LINEAR])
def test_it_learns_what_batches_take(start: dict[int, float]) -> None:
    times, draw = BatchTimes(64, start), random.Random(1)
    for _ in range(2000):
        items = draw.randint(1, 64)
        times.took(items, 0.002 + 0.001 * items)
    for items in (1, 2, 3, 7, 16, 33, 50, 64):
        assert times.expected_s(items) == pytest.approx(0.002 + 0.001 * items, rel=0.25)
    assert times.full_s == times.expected_s(64)
    assert times.deviation < 0.1


def test_one_accident_does_not_count_for_more_than_it_may() -> None:
    times = BatchTimes(64, LINEAR)
    times.took(8, 1000.0)
    assert times.expected_s(8) == pytest.approx(0.056 * 1.8)
    for _ in range(20):
        times.took(8, 0.056)
    assert times.expected_s(8) == pytest.approx(0.056, rel=0.05)


@pytest.mark.parametrize("factor", [1e-6, 0.01, 30.0, 1e6])
def test_three_in_a_row_are_no_accident(factor: float) -> None:
    times = BatchTimes(64, LINEAR)
    for _ in range(3):
        times.took(8, 0.056 * factor)
    assert times.expected_s(8) == pytest.approx(0.056 * factor, rel=1.0)
    for _ in range(30):
        times.took(8, 0.056 * factor)
    assert times.expected_s(8) == pytest.approx(0.056 * factor, rel=0.05)
    assert times.expected_s(64) == pytest.approx(0.448 * factor, rel=1.0)
    assert times.deviation < 0.1


def test_scatter_is_known() -> None:
    times = BatchTimes(8, {8: 0.010})
    for index in range(200):
        times.took(8, 0.008 if index % 2 else 0.012)
    assert times.deviation == pytest.approx(0.2, abs=0.05)


@pytest.mark.parametrize(
    ("measured", "allowed_s", "most"),
    [
        (LINEAR, 30.0, 64),  # no pressure
        (LINEAR, 0.1, 1),  # larger ones are no more efficient, and answer later
        (LINEAR, 0.001, 1),  # it cannot be met, but one at a time comes nearest
        (FLAT, 0.1, 32),  # 64 take 52 ms: too long beside another batch
        (FLAT, 0.07, 16),
        (FLAT, 10.0, 64),
    ],
)
def test_batches_are_smaller_where_the_time_allowed_is_short(
    measured: dict[int, float], allowed_s: float, most: int
) -> None:
    assert BatchTimes(64, measured).efficient(allowed_s) == most


def test_batches_of_no_time_are_no_trouble() -> None:
    times = BatchTimes(4, {1: 0.0, 4: 0.0})
    for _ in range(5000):
        times.took(3, 0.0)
    assert times.efficient(1.0) == 4


@given(
    st.dictionaries(st.sampled_from([1, 2, 4, 8, 12]), st.floats(1e-6, 10)),
    st.lists(st.tuples(st.integers(1, 12), st.floats(0, 100))),
    st.floats(1e-6, 100),
)
def test_whatever_happens_the_numbers_stay_sane(
    measured: dict[int, float], took: list[tuple[int, float]], allowed_s: float
) -> None:
    times = BatchTimes(12, measured)
    for items, seconds in took:
        times.took(items, seconds)
        assert all(times.expected_s(n) > 0 for n in range(1, 13))
        assert times.deviation >= 0
    assert 1 <= times.efficient(allowed_s) <= 12
