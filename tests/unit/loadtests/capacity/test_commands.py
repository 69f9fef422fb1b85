"""Options, gates and exit codes."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

from loadtests.capacity.commands import exit_code, missed_gates
from loadtests.capacity.finding import End, Found
from loadtests.capacity.search import Answer
from tests.unit.loadtests.openloop.trials import trial


def found(capacity: float | None, end: End = "found") -> Found:
    return Found(Answer(capacity, 1, 2, confirmed=True), (trial(10, 5),), end, False, 1)


@pytest.mark.parametrize(
    ("capacity", "end", "least", "code"),
    [
        (100.0, "found", None, 0),
        (100.0, "too large", None, 0),
        (100.0, "unreachable", None, 1),
        (100.0, "found", 100.0, 0),
        (99.0, "found", 100.0, 1),
        (None, "found", None, 1),
        (100.0, "wrong answers", None, 1),
        (100.0, "interrupted", None, 130),
    ],
)
def test_exit_codes(capacity: float | None, end: End, least: float | None, code: int) -> None:
    console = Console(file=io.StringIO())
    assert exit_code(found(capacity, end), least, console) == code


def test_min_capacity_needs_a_confirmed_capacity() -> None:
    told = io.StringIO()
    sure = found(100.0)
    unsure = dataclasses.replace(sure, answer=dataclasses.replace(sure.answer, confirmed=False))
    assert exit_code(unsure, None, Console(file=told)) == 0
    assert told.getvalue() == ""
    assert exit_code(unsure, 50.0, Console(file=told, width=200)) == 1
    assert "--min-capacity 50 needs a confirmed capacity; 100/s is not" in told.getvalue()


def test_gates_of_a_single_run() -> None:
    good = trial(100, 20, "run")
    assert missed_gates(good, None, 0.0) == []
    assert missed_gates(good, 20.001, 0.0) == []
    assert missed_gates(good, 19.0, 0.0) == ["p99 is 20.0 ms, above --fail-p99-ms 19"]
    failing = dataclasses.replace(good, failures={"503 overloaded": 20})
    assert missed_gates(failing, None, 0.02) == []
    assert missed_gates(failing, None, 0.01) == ["2.000% failed, above --fail-ratio 1.000%"]
    dead = dataclasses.replace(good, failures={"connection broken": 1000})
    assert missed_gates(dead, None, 1.0) == ["no request was answered"]
    wrong = dataclasses.replace(good, wrong=1, first_wrong="a lie")
    assert missed_gates(wrong, None, 0.0) == ["1 wrong answers, the first: a lie"]
