"""Each demand is met on one side of its bound and missed on the other, and doubted for a reason."""

from __future__ import annotations

import pytest

from loadtests.capacity.verdicts import judge
from loadtests.reports import Judged
from tests.unit.loadtests.capacity.made import hints, load, measured

LINEAR = (
    load(0.7, in_time=70),
    load(1.0, in_time=100, hints=hints(1, 1)),
    load(2.0, in_time=98, refused=900),
    load(4.0, in_time=95, refused=950),
)
DIGITS = (
    load(0.7, in_time=700),
    load(1.0, in_time=1000),
    load(2.0, in_time=600),
    load(4.0, in_time=5),
)


def line(what: str, case: str, *loads: object, pinned: bool = True) -> Judged:
    found = judge([measured(case, *loads)], pinned=pinned)  # type: ignore[arg-type]
    [made] = [each for each in found if each.of == case and what in each.what]
    return made


def test_all_demands_are_met() -> None:
    found = judge([measured("linear", *LINEAR), measured("digits", *DIGITS)], pinned=True)
    found = [each for each in found if each.of != "minilm"]
    assert [(each.what, each.verdict) for each in found if each.verdict != "met"] == []
    assert len(found) == 8


def test_sentence_p99_is_compared_with_infinity() -> None:
    ours = measured("minilm", load(0.7, p99_ms=90.0))
    assert line("infinity", "minilm", *ours.loads).verdict == "not measured"
    for theirs, verdict, said in ((90.0, "met", "1.00"), (60.0, "missed", "1.50")):
        other = measured("minilm", load(0.7, p99_ms=theirs), server="infinity")
        [found] = [each for each in judge([ours, other], pinned=True) if "infinity" in each.what]
        assert (found.verdict, found.measured) == (verdict, said)


def test_other_servers_are_not_judged() -> None:
    found = judge([measured("linear", *LINEAR, server="mosec")], pinned=True)
    assert {each.verdict for each in found} == {"not measured"}


@pytest.mark.parametrize(
    ("what", "good", "bad"),
    [
        ("goodput", load(4.0, in_time=90), load(4.0, in_time=89)),
        ("p99 of accepted", load(4.0, p99_ms=100.0), load(4.0, p99_ms=100.1)),
        (
            "p99 of refusals",
            load(4.0, refused=9, refused_p99_ms=9.9),
            load(4.0, refused=9, refused_p99_ms=10.0),
        ),
        (
            "retry_after",
            load(4.0, hints=hints(19, 18)),
            load(4.0, hints=hints(18, 17)),
        ),
        ("wrong", load(4.0), load(4.0, wrong=1)),
    ],
)
def test_bounds_apply_at_four_times_the_capacity(what: str, good: object, bad: object) -> None:
    assert line(what, "linear", *LINEAR[:3], good).verdict == "met"
    assert line(what, "linear", *LINEAR[:3], bad).verdict == "missed"


def test_one_in_a_thousand_may_be_refused_below_capacity() -> None:
    assert line("0.7x", "linear", load(0.7, refused=1)).verdict == "met"
    missed = line("0.7x", "linear", load(0.7, refused=2))
    assert (missed.verdict, missed.measured) == ("missed", "0.20% (2 of 1000, p99 5.0 ms)")
    assert line("0.7x", "linear", load(1.0)).verdict == "not measured"


def test_digits_needs_half_its_peak_under_overload() -> None:
    assert line("goodput", "digits", DIGITS[1], load(2.0, in_time=500)).verdict == "met"
    assert line("goodput", "digits", DIGITS[1], load(2.0, in_time=499)).verdict == "missed"


def test_only_answers_are_judged_without_pinned_cores() -> None:
    found = judge([measured("digits", *DIGITS)], pinned=False)
    of_digits = {each.what: (each.verdict, each.doubt) for each in found if each.of == "digits"}
    assert of_digits.pop("wrong answers") == ("met", "")
    assert set(of_digits.values()) == {("not judged", "cores not pinned")}


def test_stalled_machine_excuses_only_misses() -> None:
    late = line("p99 of accepted", "linear", load(1.0, p99_ms=150.0, stalled=0.02))
    assert late.verdict == "not judged"
    assert "2.0% of the time" in late.doubt
    fine = line("p99 of accepted", "linear", load(1.0, stalled=0.02))
    assert (fine.verdict, fine.doubt) == ("met", "")


def test_load_that_was_not_offered_is_not_judged() -> None:
    found = line("goodput", "digits", DIGITS[1], load(2.0, in_time=900, cpu=0.99))
    assert found.verdict == "not judged"
    assert "99% of its core" in found.doubt


def test_wrong_answers_miss_even_on_stalled_machines() -> None:
    assert line("wrong", "digits", load(2.0, wrong=1, stalled=0.9, cpu=0.99)).verdict == "missed"
    assert line("wrong", "digits", load(2.0, requests=0)).verdict == "not measured"
