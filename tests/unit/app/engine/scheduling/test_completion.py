"""When replicas that share some work have done it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.scheduling.completion import MARGIN, Part, completion


def part(batches: int, batch_s: float = 0.010, free_s: float = 0.0, off: float = 0.0) -> Part:
    return Part(free_s, 0.0, batches, batch_s, off)


@pytest.mark.parametrize(
    ("parts", "seconds"),
    [
        ([], 0.0),
        ([part(5, 0.0)], 0.0),  # nothing is known
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
def test_work_is_done_at(parts: list[Part], seconds: float) -> None:
    assert completion(parts).seconds == pytest.approx(seconds)


@given(
    st.lists(
        st.tuples(st.integers(1, 20), st.floats(0.001, 1.0), st.floats(0, 2.0)),
        min_size=1,
        max_size=5,
    )
)
def test_it_is_the_first_moment_at_which_whole_batches_add_up(
    drawn: list[tuple[int, float, float]],
) -> None:
    parts = [part(batches, batch_s, free_s) for batches, batch_s, free_s in drawn]

    def done(at: float) -> float:
        return sum(
            math.floor(max(0.0, at - each.free_s) / each.batch_s + 1e-6) / each.batches
            for each in parts
        )

    seconds = completion(parts).seconds
    assert done(seconds) >= 1 - 1e-6
    assert done(seconds - 1e-4) < 1 + 1e-6


@pytest.mark.parametrize("batches", [1, 9, 16, 25])
def test_batches_are_off_by_themselves_and_their_mean_for_all(batches: int) -> None:
    margin_s = completion([part(batches, off=0.1)]).margin_s
    one_s = MARGIN * 0.1 * 0.010
    assert margin_s == pytest.approx(one_s * math.sqrt(batches + batches**2 / 19), rel=0.01)


def test_margin_of_steady_batches_is_none() -> None:
    assert completion([part(20)]).margin_s == 0


def test_margin_includes_that_of_the_batch_which_runs() -> None:
    alone = completion([part(1, off=0.1)]).margin_s
    both = completion([Part(0.010, 0.1 * 0.010, 1, 0.010, 0.1)]).margin_s
    assert both == pytest.approx(math.hypot(alone, MARGIN * 0.001))


def test_margin_of_several_replicas_is_that_of_a_share() -> None:
    two = completion([part(20, off=0.1), part(20, off=0.1)]).margin_s
    assert two < 0.8 * completion([part(20, off=0.1)]).margin_s
