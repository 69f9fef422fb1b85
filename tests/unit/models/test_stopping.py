"""Unneeded measurements: rounds after a decision, and sizes that change nothing."""

from __future__ import annotations

import pytest

from models.plan import Form
from models.stopping import (
    DECIDED_RATIO,
    MAX_BUDGETS,
    SLOW_S,
    STEADY_DIFFERENCE,
    can_stop,
    in_proportion,
    is_conclusive,
    is_decided,
    remaining,
)
from models.timing import MIN_ROUNDS, WARM_RUNS
from tests.unit.models.manifests import form

A, B = form("a"), form("b")
Size = dict[Form, list[float]]


def size(**forms: float | list[float]) -> Size:
    """One size: letter -> its times, one number for three equal rounds."""
    return {
        form(name): times if isinstance(times, list) else [times] * MIN_ROUNDS
        for name, times in forms.items()
    }


class TestDecided:
    @pytest.mark.parametrize(
        ("taken", "wanted"),
        [
            ({}, True),
            (size(a=1.0), True),  # one candidate: no contest
            (size(a=1.0, b=DECIDED_RATIO, c=9.0), True),
            (size(a=DECIDED_RATIO, b=1.0), True),
            (size(a=1.0, b=0.99 * DECIDED_RATIO), False),
            (size(a=1.0, b=9.0, c=1.0), False),
            (size(a=[1.0, 1.0, 1.0], b=[9.0, 1.1, 9.0]), False),  # not in every round
        ],
    )
    def test_size_is_decided_by_clear_wins(self, taken: Size, wanted: bool) -> None:
        assert is_decided(taken) is wanted


@pytest.mark.parametrize(
    ("taken", "wanted"),
    [
        ({}, True),
        (size(a=1.0), True),
        (size(a=1.0, b=1.0, c=9.0), True),  # two are as fast, one is not
        (size(a=[0.9, 0.9, 1.1], b=[1.0, 1.0, 1.0]), False),  # faster, it seems
    ],
)
def test_forms_under_load_may_stay_undecided(taken: Size, wanted: bool) -> None:
    assert is_conclusive(taken) is wanted


class TestProportion:
    @pytest.mark.parametrize(
        ("rounds", "wanted"),
        [
            ({}, False),
            ({1: size(a=1.0), 2: size(a=2.0)}, True),
            ({1: size(a=9.0), 4: size(a=1.0), 6: size(a=1.5)}, True),  # the two largest count
            ({1: size(a=1.0), 2: size(a=2 * (1 + 0.9 * STEADY_DIFFERENCE))}, True),
            (
                {1: size(a=1.0), 2: size(a=2 * (1 - 1.1 * STEADY_DIFFERENCE))},
                False,
            ),  # batching still helps
            ({1: size(a=1.0), 2: size(a=2 * (1 + 1.1 * STEADY_DIFFERENCE))}, False),
            ({1: size(a=1.0, b=2.0), 2: size(a=2.0, b=4.0)}, True),
            ({1: size(a=1.0, b=1.05), 2: size(a=2.1, b=2.0)}, False),  # they changed places
            ({1: size(a=1.0, b=1.0), 2: size(a=2.0)}, True),  # b has lost
        ],
    )
    def test_proportion_needs_equal_item_times_and_winners(
        self, rounds: dict[int, Size], wanted: bool
    ) -> None:
        assert in_proportion(rounds) is wanted


@pytest.mark.parametrize(
    ("a", "b", "lost"),
    [
        ([1.0, 1.0, 1.0], [0.9, 0.9, 0.9], True),
        ([1.0, 1.0, 1.0], [0.95, 0.9, 0.9], False),  # not clearly in each round
        ([0.9, 0.9, 0.9], [1.0, 1.0, 1.0], False),
    ],
)
def test_clearly_slower_form_in_every_round_loses(
    a: list[float], b: list[float], lost: bool
) -> None:
    assert (A not in remaining({A: a, B: b})) is lost


def test_fast_forms_are_timed_at_every_size() -> None:
    assert remaining(size(a=0.99 * SLOW_S, b=1.0)) == [A, B]
    assert remaining(size(a=1.01 * SLOW_S, b=1.0)) == [A]
    assert remaining({}) == []


class TestCanStop:
    ROUNDS = {1: size(a=1.0, b=2.0), 2: size(a=2.0, b=4.0)}  # noqa: RUF012 - never changed
    LEAST_S = (WARM_RUNS + MIN_ROUNDS) * (4.0 + 8.0)  # at batch 4

    def test_quick_sizes_are_always_timed(self) -> None:
        assert can_stop([self.ROUNDS], 4, 0.99 * self.LEAST_S)
        assert not can_stop([self.ROUNDS], 4, 1.01 * self.LEAST_S)

    def test_warm_forms_need_less_time(self) -> None:
        assert not can_stop([self.ROUNDS], 4, 0.99 * self.LEAST_S, warm_runs=0)

    def test_every_precision_must_be_decided(self) -> None:
        open_still = {1: size(c=1.0), 2: size(c=1.0)}
        assert not can_stop([self.ROUNDS, open_still], 4, 0.5 * self.LEAST_S)
        assert can_stop([self.ROUNDS, {}], 4, 0.5 * self.LEAST_S)  # one that has no form here

    def test_very_slow_sizes_are_skipped_after_two(self) -> None:
        rounds = {1: size(a=1.0), 2: size(a=1.0)}
        least_s = (WARM_RUNS + MIN_ROUNDS) * 2.0
        assert can_stop([rounds], 4, 0.99 * least_s / MAX_BUDGETS)
        assert not can_stop([rounds], 4, 1.01 * least_s / MAX_BUDGETS)
        assert not can_stop([{1: size(a=1.0)}], 4, 0)
