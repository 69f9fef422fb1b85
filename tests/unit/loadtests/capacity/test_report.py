"""Sentences, tables and figures of a search."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

from loadtests.capacity import report
from loadtests.capacity.finding import Found
from loadtests.capacity.search import Answer
from loadtests.openloop.sender import Cost
from tests.unit.loadtests.openloop.trials import GATES, conditions, trial

TRIALS = (
    trial(100, 4, "warm-up"),
    trial(100, 4, "probe"),
    trial(400, 300, "probe"),
    trial(250, 80),
    trial(200, 20, "confirm"),
)
FOUND = Found(Answer(200.0, 195.0, 220.0, confirmed=True), TRIALS, "found", False, 42.0)
NOTHING = Found(
    Answer(None, 1.0, 2.0, confirmed=False), (trial(1, 90, "probe"),), "found", False, 9
)


def test_the_headline_is_one_number() -> None:
    said = report.headline(FOUND, GATES)
    assert said == "Capacity: 200 requests/s (typical p99 of at most 50 ms, at most 0.10% failed)"
    notes = " ".join(report.notes(FOUND, GATES))
    assert "between 195 and 220 requests/s" in notes
    assert "5 trials in 42 s" in notes
    assert "Not confirmed" not in notes
    assert "Not to be trusted" not in notes


def test_generator_limit_headline_says_at_least() -> None:
    full = trial(250, 80, cost=Cost(0.99, 1, 0))
    bound = dataclasses.replace(FOUND, trials=(*TRIALS[:3], full, TRIALS[4]), at_least=True)
    said = report.headline(bound, GATES)
    assert said.startswith("Capacity: at least 200 requests/s")
    assert said.endswith("the generator is the limit")
    all_kept = dataclasses.replace(FOUND, trials=TRIALS[:2], at_least=True)
    assert report.headline(all_kept, GATES).endswith("no higher rate was tried")


def test_headline_says_that_the_slo_is_missed() -> None:
    said = report.headline(NOTHING, GATES)
    assert said.startswith("The server does not meet the SLO")
    assert said.endswith("even at 1 requests/s")


def test_wrong_answers_and_interruptions_are_reported() -> None:
    bad = dataclasses.replace(trial(400, 4), wrong=2, first_wrong="label bee instead of ant")
    wrong = dataclasses.replace(FOUND, trials=(*TRIALS, bad), end="wrong answers")
    assert report.headline(wrong, GATES) == (
        "2 wrong answers at 400 requests/s: label bee instead of ant"
    )
    cut = dataclasses.replace(FOUND, end="interrupted")
    assert "Interrupted" in report.notes(cut, GATES)[0]
    early = dataclasses.replace(NOTHING, trials=(), end="interrupted")
    assert report.headline(early, GATES) == "Interrupted before there was any result"


def test_aborted_search_reports_the_cause() -> None:
    answer = dataclasses.replace(FOUND.answer, confirmed=False)
    gone = dataclasses.replace(FOUND, answer=answer, end="unreachable", reason="no server there")
    assert report.headline(gone, GATES).startswith("Capacity: 200 requests/s, not confirmed")
    assert "Cut short: no server there." in report.notes(gone, GATES)
    early = dataclasses.replace(NOTHING, end="unreachable", reason="no server there")
    assert report.headline(early, GATES) == "Cut short before there was any result: no server there"
    full = dataclasses.replace(gone, trials=TRIALS[:2], end="too large", at_least=True)
    assert report.headline(full, GATES).endswith("at a higher rate does not fit into memory")


def test_unconfirmed_or_doubtful_results_are_marked() -> None:
    unsure = dataclasses.replace(FOUND, answer=dataclasses.replace(FOUND.answer, confirmed=False))
    assert any("Not confirmed" in note for note in report.notes(unsure, GATES))
    said = report.headline(unsure, GATES)
    assert said.startswith("Capacity: 200 requests/s, not confirmed (typical p99 of")
    least = dataclasses.replace(unsure, at_least=True)
    assert any("Not confirmed" in note for note in report.notes(least, GATES))
    assert "at least 200 requests/s, not confirmed" in report.headline(least, GATES)
    starved = trial(200, 20, "confirm", cost=Cost(0.1, 1, 7))
    doubtful = dataclasses.replace(FOUND, trials=(*TRIALS[:4], starved))
    assert any("7 requests waited" in note for note in report.notes(doubtful, GATES))


def test_table_has_a_row_per_trial() -> None:
    console = Console(file=io.StringIO(), width=110)
    with console.capture() as captured:
        report.print_trials(console, TRIALS, GATES)
    rows = captured.get().splitlines()
    kinds = [row.split() for row in rows if row.strip().startswith(("warm", "probe", "s", "conf"))]
    assert [row[0] for row in kinds] == ["warm-up", "probe", "probe", "search", "confirm"]
    assert [row[-1] for row in kinds] == ["kept", "kept", "missed", "missed", "kept"]


def test_json_holds_everything() -> None:
    found = report.capacity_json(FOUND, GATES, conditions())
    assert found["kind"] == "capacity"
    assert (found["capacity_per_s"], found["confirmed"], found["at_least"]) == (200, True, False)
    assert found["at_capacity"]["rate_per_s"] == 200
    assert found["conditions"]["workload"] == "unique"
    assert [each["verdict"] for each in found["trials"]] == [
        "kept",
        "kept",
        "missed",
        "missed",
        "kept",
    ]
    assert found["trials"][0]["p99_ms"] == pytest.approx(4)
    assert report.capacity_json(NOTHING, GATES, conditions())["at_capacity"] is None
