"""Evaluation of a plan's times."""

from __future__ import annotations

import pytest

from export.timing.timings import best_single, plan_line, standings, three_digits
from models.plan import Step
from tests.unit.export.measured import (
    COMPILED,
    MIXED,
    ONE_WINS,
    OPTIMIZED,
    SCRIPT,
    device_plan,
    per_item,
)


def test_plan_is_compared_with_fastest_form_per_size() -> None:
    standing_list = standings(MIXED, "float32")
    assert [each.size for each in standing_list] == [1, 2, 4]
    assert [each.plan_form for each in standing_list] == [COMPILED, COMPILED, OPTIMIZED]
    assert [each.fastest for each in standing_list] == [COMPILED, COMPILED, OPTIMIZED]
    assert [each.runner_up for each in standing_list] == [SCRIPT, SCRIPT, COMPILED]
    assert all(each.within_noise for each in standing_list)
    assert [each.ratio(SCRIPT) for each in standing_list] == pytest.approx(
        [40 / 80, 50 / 75, 30 / 70]
    )


def test_small_slowdown_is_noise() -> None:
    steps = [Step(up_to=4, form=SCRIPT)]
    times = [per_item(SCRIPT, (100, 100, 100)), per_item(OPTIMIZED, (98, 90, 97.5))]
    standing_list = standings(device_plan(times, *steps), "float32")
    assert [each.within_noise for each in standing_list] == [True, False, True]
    wide = [per_item(SCRIPT, (100,), spread=0.2), per_item(OPTIMIZED, (90,), spread=0.2)]
    assert standings(device_plan(wide, *steps), "float32")[0].within_noise


def test_the_best_single_form_has_the_least_geometric_mean() -> None:
    # 80 * 75 * 70 = 420,000; 200 * 100 * 30 = 600,000; 40 * 50 * 60 = 120,000
    assert best_single(standings(MIXED, "float32")) == COMPILED


def test_single_form_needs_times_at_every_size() -> None:
    times = [per_item(SCRIPT, (10, 10)), per_item(OPTIMIZED, (20,))]
    steps = [Step(up_to=1, form=OPTIMIZED), Step(up_to=2, form=SCRIPT)]
    standing_list = standings(device_plan(times, *steps), "float32")
    assert best_single(standing_list) == SCRIPT
    assert best_single([]) is None


def test_sizes_without_chosen_form_times_are_omitted() -> None:
    times = [per_item(SCRIPT, (10, 10, 10)), per_item(OPTIMIZED, (20,))]
    steps = [Step(up_to=4, form=OPTIMIZED)]
    assert [each.size for each in standings(device_plan(times, *steps), "float32")] == [1]


def test_the_plan_reads_as_ranges_of_sizes() -> None:
    assert plan_line(MIXED.steps["float32"]) == "1..2 compiled; 3..4 script, optimized at load"
    assert plan_line(ONE_WINS.steps["float32"]) == "1..4 script"
    single = (Step(up_to=1, form=SCRIPT), Step(up_to=2, form=COMPILED))
    assert plan_line(single) == "1 script; 2 compiled"


@pytest.mark.parametrize(
    ("value", "expected"),
    [(4.412, "4.41"), (9.999, "10.0"), (18.53, "18.5"), (99.96, "100"), (1360.2, "1,360")],
)
def test_numbers_keep_three_digits(value: float, expected: str) -> None:
    assert three_digits(value) == expected
