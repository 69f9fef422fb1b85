"""Evaluation of a plan's times."""

from __future__ import annotations

from export.timing.timings import best_single, standings
from models.plan import Step
from tests.unit.export.measured import (
    OPTIMIZED,
    SCRIPT,
    device_plan,
    per_item,
)


def test_small_slowdown_is_noise() -> None:
    steps = [Step(up_to=4, form=SCRIPT)]
    times = [per_item(SCRIPT, (100, 100, 100)), per_item(OPTIMIZED, (98, 90, 97.5))]
    standing_list = standings(device_plan(times, *steps), "float32")
    assert [each.within_noise for each in standing_list] == [True, False, True]
    wide = [per_item(SCRIPT, (100,), spread=0.2), per_item(OPTIMIZED, (90,), spread=0.2)]
    assert standings(device_plan(wide, *steps), "float32")[0].within_noise


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
