"""The search acted out with made-up trials: its ends, and what it says about them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import pytest

from loadtests.capacity.finding import SearchResult, find
from loadtests.capacity.search import Lengths, Search, TrialStep
from loadtests.openloop.sender import Cost
from loadtests.openloop.trial import TrialResult
from tests.unit.loadtests.openloop.trials import GATES, trial

FULL = Cost(cpu=0.99, connections=4, starved=0)


def search_with(
    measure: Callable[[TrialStep], TrialResult], highest: float = 100_000
) -> SearchResult:
    trials: list[TrialResult] = []
    ticks = itertools.count(step=3)  # each look at the clock is three seconds later
    search = Search(Lengths.within(120), 100, 1, highest)
    result = find(search, measure, GATES, 120, lambda: float(next(ticks)), trials.append)
    assert tuple(trials) == result.trials
    return result


def sharp(limit: float, cost: Cost | None = None) -> Callable[[TrialStep], TrialResult]:
    """A server that is quick up to its limit, and late above."""

    def measure(step: TrialStep) -> TrialResult:
        late = step.rate_per_s > limit
        outcome = trial(step.rate_per_s, 400 if late else 5, step.kind)
        served = min(step.rate_per_s, limit)
        outcome = dataclasses.replace(outcome, achieved_per_s=served)
        return dataclasses.replace(outcome, cost=cost) if cost and late else outcome

    return measure


def test_sharp_limit_is_found_with_a_trial() -> None:
    result = search_with(sharp(1500))
    assert result.end == "found"
    assert result.trials[0].kind == "warm-up"
    assert result.answer.capacity_per_s == pytest.approx(1500, rel=0.1)
    assert not result.at_least
    best = result.at_capacity(GATES)
    assert best is not None
    assert best.meets(GATES)
    assert best.rate_per_s == pytest.approx(result.answer.capacity_per_s, rel=0.1)
    assert result.seconds <= 150


def test_generator_limit_gives_a_lower_bound() -> None:
    result = search_with(sharp(1500, cost=FULL))
    assert result.at_least
    assert result.answer.capacity_per_s == pytest.approx(1500, rel=0.1)


def test_the_first_wrong_answer_ends_the_search() -> None:
    def measure(step: TrialStep) -> TrialResult:
        outcome = sharp(1500)(step)
        return (
            dataclasses.replace(outcome, wrong=1, first_wrong="a lie")
            if step.rate_per_s > 300
            else outcome
        )

    result = search_with(measure)
    assert result.end == "wrong answers"
    assert [each.wrong for each in result.trials] == [0, 0, 1]
