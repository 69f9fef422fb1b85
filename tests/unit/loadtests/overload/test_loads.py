"""What came of a load: every request is one of in time, late, refused, wrong and an error."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from loadtests.openloop.arrivals import schedule
from loadtests.overload.loads import ideal_refused, load_of
from loadtests.wire import Response
from tests.unit.loadtests.overload.made import FINE, OFFER, fired, refusal


def test_every_request_counts_once() -> None:
    came = fired(
        (0.0, 0.050, 200),
        (0.1, 0.300, 200),  # late
        (0.2, 0.304, 504),
        (0.3, 0.404, 408),
        (0.4, 2.500, None),  # no answer
        (0.5, 0.504, refusal(40)),
        (0.6, 0.602, 429),
        (0.7, 0.750, 200),  # wrong
        (0.8, 0.801, 0),  # broken
        (0.9, 0.910, refusal(code="shutting_down")),
        (0.95, 0.96, 500),
    )
    load = load_of(OFFER, came, {7: "score 1 instead of 2"})
    counts = (load.in_time, load.late, load.refused, load.errors, load.wrong)
    assert counts == (1, 4, 2, 3, 1)
    assert sum(counts) == load.requests == 11
    assert load.judged == 3
    assert load.goodput_per_s == 1.0
    assert load.refused_share == pytest.approx(2 / 11)
    assert load.p50_ms == pytest.approx(104)  # of 50, 50, 104, 104, 200 and 2100
    assert load.p99_refused_ms == pytest.approx(4, abs=0.1)
    assert load.lag_p99_ms == pytest.approx(1)
    assert load.generator_cpu == 0.5
    assert load.first_error == "connection broken"
    assert load.hints.told_ms.tolist() == [40]  # a bare 429 says nothing


def test_a_late_answer_that_is_wrong_is_wrong() -> None:
    load = load_of(OFFER, fired((0.0, 5.0, 200)), {0: "wrong"})
    assert (load.late, load.wrong) == (0, 1)


def test_what_comes_before_the_count_begins_is_not_counted_but_keeps_others_waiting() -> None:
    offer = dataclasses.replace(OFFER, lead_s=0.5)
    came = fired((0.4, 0.590, 200), (0.41, 0.42, refusal(10)), (0.5, 0.510, refusal(40)))
    load = load_of(offer, came, {})
    assert (load.requests, load.refused, load.in_time) == (1, 1, 0)
    assert load.hints.true_ms == pytest.approx([80])
    assert (load.p50_ms, load.p99_ms) == (None, None)


def test_refusals_that_are_no_json_are_refusals() -> None:
    came = fired((0.0, 0.001, Response(503, b"busy")), (0.1, 0.101, Response(503, b"[1]")))
    assert load_of(OFFER, came, {}).refused == 2


def test_a_load_without_requests_is_no_trouble() -> None:
    load = load_of(OFFER, fired(), {})
    assert (load.requests, load.refused_share, load.goodput_per_s) == (0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("changes", "doubt"),
    [
        ({}, None),
        ({"lag_p99_ms": 10.1}, "10 ms late"),
        ({"generator_cpu": 0.91}, "91% of its core"),
        ({"starved": 3}, "3 requests found no connection"),
    ],
)
def test_a_load_that_was_not_offered_is_doubted(
    changes: dict[str, float], doubt: str | None
) -> None:
    found = dataclasses.replace(FINE, **changes).doubt  # type: ignore[arg-type]
    assert (found is None) if doubt is None else (found is not None and doubt in found)


def test_what_the_best_of_servers_would_refuse() -> None:
    assert ideal_refused(np.array([0.0, 0.0, 0.0, 0.0]), 0.0, 0.04, 0.1) == 0.5
    assert ideal_refused(np.array([0.0, 0.0, 0.0, 0.5]), 0.4, 0.04, 0.1) == 0.0
    assert ideal_refused(np.empty(0), 0.0, 0.04, 0.1) == 0.0
    for times, least, most in ((0.7, 0.0, 0.001), (2.0, 0.49, 0.51), (4.0, 0.74, 0.76)):
        due_s = schedule("poisson", times / 0.006, 100.0, seed=1)
        assert least <= ideal_refused(due_s, 0.0, 0.006, 0.1) <= most
