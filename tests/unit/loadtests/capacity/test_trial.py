"""Figures of a trial: exact on hand-made outcomes."""

from __future__ import annotations

import numpy as np
import pytest

from loadtests.capacity.trial import Cost, Gates, Trial, quantiles, summarize
from tests.unit.loadtests.capacity.trials import IDLE, outcomes, trial

GATES = Gates(slo_ms=50, fail_ratio=0.001)


def test_quantiles_are_nearest_ranks() -> None:
    values = np.arange(100, 0, -1)
    assert quantiles(values, (50, 95, 99, 100)) == [50, 95, 99, 100]
    assert quantiles(values[:0], (50, 99)) == [0, 0]


def test_the_figures_of_a_trial() -> None:
    late = [0.010] * 900 + [0.100] * 100
    found = summarize("run", 500, 2.0, outcomes(late, seconds=2.0), IDLE, slo_ms=50)
    assert (found.requests, found.offered_per_s, found.achieved_per_s) == (1000, 500, 500)
    assert found.goodput_per_s == 450
    assert (found.p50_ms, found.p95_ms, found.p99_ms, found.max_ms) == (10, 100, 100, 100)
    assert found.windows == 5


def test_one_hiccup_moves_the_p99_but_not_the_typical_one() -> None:
    late = [0.010] * 1000
    late[400:460] = [0.300] * 60  # within the third of five parts
    found = summarize("search", 1000, 1.0, outcomes(late), IDLE, 50)
    assert found.p99_ms == 300
    assert found.typical_p99_ms == 10
    assert found.meets(GATES)


def test_a_queue_that_grows_is_no_hiccup() -> None:
    late = [0.001 * place for place in range(1000)]
    found = summarize("search", 1000, 1.0, outcomes(late), IDLE, 50)
    assert found.typical_p99_ms == pytest.approx(597, abs=3)  # of the middle part
    assert not found.meets(GATES)


def test_refused_requests_do_not_make_latencies_look_better() -> None:
    late = [0.100] * 500 + [0.001] * 500
    quick = dict.fromkeys(range(500, 1000), "503 overloaded")
    refused = outcomes(late, failures=quick, refused=frozenset(quick))
    found = summarize("search", 1000, 1.0, refused, IDLE, 50)
    assert found.p50_ms == 100
    assert found.fail_ratio == 0.5
    assert found.failures == {"503 overloaded": 500}
    assert found.goodput_per_s == 0


def test_the_unanswered_count_with_the_time_they_waited() -> None:
    late = [0.001] * 500 + [2.0] * 500
    failures = dict.fromkeys(range(500, 1000), "no answer in time")
    found = summarize("search", 1000, 1.0, outcomes(late, failures=failures), IDLE, 50)
    assert found.p99_ms == 2000
    assert found.goodput_per_s == 500


def test_more_failures_than_allowed_miss_the_gates() -> None:
    def failing(count: int) -> Trial:
        failures = dict.fromkeys(range(count), "503 overloaded")
        made = outcomes([0.001] * 1000, failures=failures, refused=frozenset(failures))
        return summarize("search", 1000, 1.0, made, IDLE, 50)

    assert failing(1).meets(GATES)
    assert not failing(2).meets(GATES)


def test_a_trial_without_requests_proves_nothing() -> None:
    assert not summarize("search", 1, 1.0, outcomes([]), IDLE, 50).meets(GATES)


def test_wrong_answers_are_counted_apart_and_are_no_goodput() -> None:
    made = outcomes([0.001] * 10, wrong={3: "other", -1: "of the settling time"})
    found = summarize("search", 10, 1.0, made, IDLE, 50)
    assert (found.wrong, found.failed, found.goodput_per_s) == (2, 0, 9)
    assert found.first_wrong == "of the settling time"


def test_lag_that_makes_all_the_lateness_is_the_generators_fault() -> None:
    found = summarize("search", 1000, 1.0, outcomes([0.060] * 1000, lag_s=0.055), IDLE, 50)
    assert not found.meets(GATES)
    assert found.generator_bound(GATES)
    assert "sent late" in found.doubts(GATES)[0]


def test_a_late_server_is_not_excused_by_a_little_lag() -> None:
    found = summarize("search", 1000, 1.0, outcomes([0.160] * 1000, lag_s=0.006), IDLE, 50)
    assert not found.generator_bound(GATES)


def test_a_generator_without_time_left_says_so() -> None:
    busy = Cost(cpu=0.97, connections=4, starved=3)
    found = trial(1000, p99_ms=80, cost=busy)
    assert found.generator_bound(GATES)
    assert [word for doubt in found.doubts(GATES) for word in doubt.split() if "--" in word] == [
        "--processes",
        "--connections",
    ]
    assert not trial(1000, p99_ms=8, cost=busy).generator_bound(GATES)
    assert trial(1000, p99_ms=8).doubts(GATES) == []


def test_connections_that_the_generator_could_not_open_are_not_the_servers_failures() -> None:
    def failing(count: int) -> Trial:
        failures = dict.fromkeys(range(count), "failed")
        made = outcomes([0.001] * 1000, failures=failures)
        return summarize("run", 1000, 1.0, made, Cost(0.1, 4, 0, unopened=20), 50)

    assert failing(20).generator_bound(GATES)
    assert failing(21).generator_bound(GATES)
    assert not failing(30).generator_bound(GATES)  # ten of them are the server's
    assert "ulimit -n" in failing(20).doubts(GATES)[0]
