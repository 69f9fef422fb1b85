"""The search acted out with made-up trials: its ends, and what it says about them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import pytest

from loadtests.capacity.finding import Found, find
from loadtests.capacity.search import Lengths, Search, Step
from loadtests.openloop.sender import Cost
from loadtests.openloop.trial import Trial
from tests.unit.loadtests.openloop.trials import GATES, trial

FULL = Cost(cpu=0.99, connections=4, starved=0)


def found_with(measure: Callable[[Step], Trial], highest: float = 100_000) -> Found:
    told: list[Trial] = []
    ticks = itertools.count(step=3)  # each look at the clock is three seconds later
    search = Search(Lengths.within(120), 100, 1, highest)
    found = find(search, measure, GATES, 120, lambda: float(next(ticks)), told.append)
    assert tuple(told) == found.trials
    return found


def sharp(limit: float, cost: Cost | None = None) -> Callable[[Step], Trial]:
    """A server that is quick up to its limit, and late above."""

    def measure(step: Step) -> Trial:
        late = step.rate_per_s > limit
        made = trial(step.rate_per_s, 400 if late else 5, step.kind)
        served = min(step.rate_per_s, limit)
        made = dataclasses.replace(made, achieved_per_s=served)
        return dataclasses.replace(made, cost=cost) if cost and late else made

    return measure


def test_sharp_limit_is_found_with_a_trial() -> None:
    found = found_with(sharp(1500))
    assert found.end == "found"
    assert found.trials[0].kind == "warm-up"
    assert found.answer.capacity_per_s == pytest.approx(1500, rel=0.1)
    assert not found.at_least
    shown = found.at_capacity(GATES)
    assert shown is not None
    assert shown.meets(GATES)
    assert shown.rate_per_s == pytest.approx(found.answer.capacity_per_s, rel=0.1)
    assert found.seconds <= 150


def test_generator_limit_gives_a_lower_bound() -> None:
    found = found_with(sharp(1500, cost=FULL))
    assert found.at_least
    assert found.answer.capacity_per_s == pytest.approx(1500, rel=0.1)


def test_the_first_wrong_answer_ends_the_search() -> None:
    def measure(step: Step) -> Trial:
        made = sharp(1500)(step)
        return (
            dataclasses.replace(made, wrong=1, first_wrong="a lie")
            if step.rate_per_s > 300
            else made
        )

    found = found_with(measure)
    assert found.end == "wrong answers"
    assert [each.wrong for each in found.trials] == [0, 0, 1]
