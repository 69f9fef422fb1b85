"""When replicas that share some work have done it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.completion import MARGIN, Part, completion_s, meets, own_share_s


def part(batches: int, batch_s: float = 0.010, free_s: float = 0.0, off: float = 0.0) -> Part:
    return Part(free_s, 0.0, batches, batch_s, off)


DRAWN = st.builds(part, st.integers(1, 20), st.floats(0.001, 1.0), st.floats(0, 2.0))
PARTS = st.lists(DRAWN, min_size=1, max_size=5)


def least_s(parts: list[Part]) -> float:
    """The shortest time within which they meet it."""
    low_s, high_s = 0.0, 100.0
    while high_s - low_s > 1e-6:
        middle_s = (low_s + high_s) / 2
        low_s, high_s = (low_s, middle_s) if meets(parts, middle_s) else (middle_s, high_s)
    return high_s


@pytest.mark.parametrize(
    ("parts", "seconds"),
    [
        ([], 0.0),
        ([part(5, 0.0)], 0.0),  # nothing is known
        ([part(5, 0.0, free_s=0.5), part(5, free_s=0.1)], 0.5),  # but for what runs
        ([part(5)], 0.050),
        ([part(5, free_s=0.003)], 0.053),
        ([part(4), part(4)], 0.020),
        ([part(5), part(5)], 0.030),  # the last batch is not divided
        ([part(5), part(5, free_s=1.0)], 0.050),  # too late to help
        ([part(2, free_s=0.010), part(2, free_s=0.015)], 0.025),
        ([part(8, 0.001), part(1, 0.100)], 0.008),  # the slow one would not be done before
        ([part(30, 0.010), part(15, 0.020)], 0.160),
    ],
)
def test_completion_time_of_parts(parts: list[Part], seconds: float) -> None:
    assert completion_s(parts) == pytest.approx(seconds)


@given(PARTS)
def test_completion_and_meets_agree_without_scatter(parts: list[Part]) -> None:
    seconds = completion_s(parts)
    assert meets(parts, seconds + 1e-6)
    assert not meets(parts, seconds - 1e-4)


@given(PARTS, DRAWN, st.floats(0, 1), st.floats(0, 5))
def test_another_replica_never_delays_completion(
    parts: list[Part], another: Part, off: float, free_off_s: float
) -> None:
    uncertain = another._replace(deviation=off, free_off_s=free_off_s)
    seconds = least_s(parts)
    assert meets([*parts, uncertain], seconds + 1e-5)


@pytest.mark.parametrize("batches", [1, 9, 16, 25])
def test_margin_combines_batch_and_mean_errors(batches: int) -> None:
    margin_s = least_s([part(batches, off=0.1)]) - batches * 0.010
    one_s = MARGIN * 0.1 * 0.010
    assert margin_s == pytest.approx(one_s * math.sqrt(batches + batches**2 / 19), rel=0.01)


def test_margin_includes_the_running_batch() -> None:
    alone = least_s([part(1, off=0.1)]) - 0.010
    both = least_s([Part(0.010, 0.1 * 0.010, 1, 0.010, 0.1)]) - 0.020
    assert both == pytest.approx(math.hypot(alone, MARGIN * 0.001), rel=0.01)


def test_several_replicas_reduce_the_margin() -> None:
    two = least_s([part(20, off=0.1), part(20, off=0.1)]) - 0.100
    assert two < 0.8 * (least_s([part(20, off=0.1)]) - 0.200)


@pytest.mark.parametrize(
    ("others_s", "share_s"),
    [([], 1.0), ([9.0], 0.5), ([0.1], 0.9), ([0.1, 9.0], 0.45), ([9.0, 9.0, 9.0], 0.25)],
)
def test_models_share_a_device_equally(others_s: list[float], share_s: float) -> None:
    assert own_share_s(1.0, others_s) == pytest.approx(share_s)
