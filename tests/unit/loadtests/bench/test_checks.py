"""What keeps a number out of the report: wrong answers, errors, answers that were not computed."""

from __future__ import annotations

from typing import Any

import pytest

from loadtests.bench.checks import (
    CheckError,
    check_all_answered,
    check_all_computed,
    difference,
)
from loadtests.bench.generator import Run
from loadtests.wire import Response

EXPECTED: dict[str, Any] = {"label": "7", "score": 0.75, "scores": [0.25, 0.75]}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, None),
        ({"score": 0.75005}, None),
        ({"label": "3"}, "label '3' instead of '7'"),
        ({"score": 0.7502}, "score 0.7502 instead of 0.75"),
        ({"scores": [0.2498, 0.75]}, "score 0.2498 instead of 0.25"),
        ({"scores": [0.25, float("nan")]}, "score nan instead of 0.75"),
        ({"scores": [0.25]}, "1 scores instead of 2"),
        ({"extra": 1}, "no prediction"),
    ],
)
def test_predictions_are_compared_by_content(change: dict[str, Any], says: str | None) -> None:
    problem = difference(EXPECTED, EXPECTED | change)
    assert problem is None if says is None else says in str(problem)


@pytest.mark.parametrize("got", [None, [], {}, {"error": "no", "code": "backend_failed"}])
def test_what_is_no_prediction_is_said_to_be_none(got: object) -> None:
    assert "no prediction" in str(difference(EXPECTED, got))


def test_a_cached_answer_is_found_out() -> None:
    check_all_computed(before=50, after=150, answered=100)
    with pytest.raises(CheckError, match="grew by 99 in a run of 100"):
        check_all_computed(before=50, after=149, answered=100)


def test_answers_that_are_not_200_do_not_count() -> None:
    refused = Run(1.0, [0.1], 3, not_200=2, first_not_200=Response(503, b"overloaded"))
    with pytest.raises(CheckError, match=r"bare: 2 of 3 answers were not 200.*503: overloaded"):
        check_all_answered("bare", refused)
    with pytest.raises(CheckError, match="no answer in 1 s"):
        check_all_answered("bare", Run(1.0))
    check_all_answered("bare", Run(1.0, [0.1], answered=1))
