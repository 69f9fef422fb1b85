"""Figures of a trial: exact on hand-made outcomes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from loadtests.openloop.sender import Cost, Kind
from loadtests.openloop.trial import Gates, quantiles
from tests.unit.loadtests.openloop.trials import GATES, outcomes, summary, trial

OVERLOADED = (Kind.REFUSED, "503 overloaded")


def test_quantiles_are_nearest_ranks() -> None:
    values = np.arange(100, 0, -1)
    assert quantiles(values, (50, 95, 99, 100)) == [50, 95, 99, 100]
    assert quantiles(values[:0], (50, 99)) == [0, 0]


def test_the_figures_of_a_trial() -> None:
    late = [0.010] * 900 + [0.100] * 100
    figures = summary(outcomes(late, seconds=2.0), seconds=2.0)
    assert (figures.requests, figures.offered_per_s) == (1000, 500)
    assert figures.achieved_per_s == 475  # those of the last 100 ms come after the measured time
    assert figures.goodput_per_s == 450
    assert (figures.p50_ms, figures.p95_ms, figures.p99_ms) == pytest.approx((10, 100, 100))
    assert figures.windows == 5


def test_every_request_counts_once() -> None:
    kinds = {
        2: (Kind.GIVEN_UP, "504"),
        3: (Kind.REFUSED, "503"),
        4: (Kind.ERROR, "broken"),
        5: (Kind.WRONG, "score 1 instead of 2"),
    }
    figures = summary(outcomes([0.010, 0.100, 0.120, 0.004, 0.001, 5.0], kinds))
    counts = (figures.in_time, figures.late, figures.refused, figures.errors, figures.wrong)
    assert counts == (1, 2, 1, 1, 1)
    assert sum(counts) == figures.requests == 6
    assert figures.failures == {"504": 1, "503": 1, "broken": 1}
    assert figures.first_wrong == "score 1 instead of 2"
    assert figures.refused_p99_ms == pytest.approx(4)
    assert figures.p50_ms == pytest.approx(100)  # of 10, 100, 120 and 5,000


def test_hiccup_does_not_change_the_typical_p99() -> None:
    late = [0.010] * 1000
    late[400:460] = [0.300] * 60  # within the third of five parts
    figures = summary(outcomes(late))
    assert figures.p99_ms == pytest.approx(300)
    assert figures.typical_p99_ms == pytest.approx(10)
    assert figures.meets(GATES)


@pytest.mark.parametrize(("count", "is_met"), [(100, True), (101, False)])
def test_rate_needs_nine_tenths_in_time(count: int, is_met: bool) -> None:
    gates = Gates(50, 0.1, in_time=0.9)
    late = [0.100] * 50 + [0.001] * 950
    refused = outcomes(late, dict.fromkeys(range(50, count), OVERLOADED))
    assert summary(refused).meets(gates) == is_met


def test_lateness_due_to_lag_is_the_generators_fault() -> None:
    figures = summary(outcomes([0.060] * 1000, lag_s=0.055))
    assert not figures.meets(GATES)
    assert figures.generator_bound(GATES)
    assert "sent late" in figures.doubts()[0]


def test_busy_generator_is_reported() -> None:
    busy = Cost(cpu=0.97, connections=4, starved=3)
    figures = trial(1000, p99_ms=80, cost=busy)
    assert figures.generator_bound(GATES)
    busy_doubt, starved_doubt = figures.doubts()
    assert "used 97% of its core" in busy_doubt
    assert "--connections" in starved_doubt
    assert not trial(1000, p99_ms=8, cost=busy).generator_bound(GATES)
    assert trial(1000, p99_ms=8).doubts() == []


@pytest.mark.parametrize(
    ("done_s", "refused", "true_ms"),
    [
        # after the first two; after the third accepted one as well; the last came too late to count
        ([0.050, 0.120, 0.011, 0.300, 0.012, 0.400], [2, 4], [109, 288]),
        ([0.200, 0.050, 0.010], [2], [190]),  # what overtakes does not shorten the truth
    ],
)
def test_true_hint_lasts_until_accepted_requests_end(
    done_s: list[float], refused: list[int], true_ms: list[float]
) -> None:
    results = outcomes(
        done_s,
        dict.fromkeys(refused, OVERLOADED),
        due_s=[0.0] * len(done_s),
        hint_ms=dict(zip(refused, true_ms, strict=True)),
    )
    hints = summary(results).hints
    assert (hints.judged, hints.within) == (len(refused), len(refused))
    assert hints.median_ratio == pytest.approx(1)
    doubled = dataclasses.replace(results, hint_ms=results.hint_ms * 2.02)
    assert summary(doubled).hints.within == 0
