"""The overload table says what was measured, for people and for machines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from loadtests.capacity.overload import ideal_refused
from loadtests.capacity.overload_report import COLUMNS, as_json, cells, notes, print_report
from loadtests.capacity.verdicts import judge
from loadtests.openloop.arrivals import schedule
from loadtests.reports import print_judged, write
from tests.unit.loadtests.capacity.made import hints, load, measured

RESULTS = (
    measured(
        "linear",
        load(0.7, ideal=0.001),
        load(4.0, refused=750, hints=hints(2, 1), ideal=0.748),
    ),
    measured("linear", load(0.7), load(4.0, late=990, refused_p99_ms=None), server="plain_fastapi"),
    measured("digits", load(2.0, cpu=0.95)),
    measured(
        "digits",
        load(2.0, errors=1, failures={"500: oops": 1}),
        server="mosec",
    ),
)


def test_the_cells_of_a_load() -> None:
    ours, plain = (
        dict(zip(COLUMNS, cells(each, each.loads[1]), strict=True)) for each in RESULTS[:2]
    )
    assert (ours["load"], ours["server"]) == ("4x", "Torchlane")
    assert ours["refused"] == "75.00% (74.8%)"
    assert ours["hint/truth"] == "1.02, 50%"
    assert (plain["late"], plain["p99 refused"], plain["hint/truth"]) == ("99.00%", "", "")
    assert cells(RESULTS[2], RESULTS[2].loads[0])[0] == "2x*"


def test_notes_list_capacities_and_doubts() -> None:
    said = "\n".join(notes(RESULTS[2:]))
    assert "capacity: Torchlane 100/s, mosec 100/s" in said
    assert "* Torchlane at 2x: not the intended load: the generator used 95%" in said
    assert "mosec at 2x: 500: oops" in said


def test_it_is_printed_and_written(tmp_path: Path) -> None:
    console, lines = Console(record=True, width=175), judge(RESULTS, pinned=True)
    print_report(console, RESULTS)
    print_judged(console, lines)
    write(tmp_path, "overload", as_json(RESULTS, lines, {"command": "overload"}), console)
    page = (tmp_path / "overload.html").read_text()
    for said in ("the model linear", "goodput at", "capacity: Torchlane", "oops"):
        assert said in page
    assert not any(word in page for word in ("<script", "<link", 'src="http'))
    made = json.loads((tmp_path / "overload.json").read_bytes())
    assert made["conditions"] == {"command": "overload"}
    assert [each["server"] for each in made["results"]][:2] == ["torchlane", "plain_fastapi"]
    at_four = made["results"][0]["loads"][1]
    assert (at_four["times"], at_four["trial"]["refused"]) == (4.0, 750)
    assert at_four["trial"]["hints"] == {"judged": 2, "within": 1, "median_ratio": 1.02}
    assert len(made["acceptance"]) == 10


@pytest.mark.parametrize(
    ("due_s", "lead_s", "refused"),
    [([0.0, 0.0, 0.0, 0.0], 0.0, 0.5), ([0.0, 0.0, 0.0, 0.5], 0.4, 0.0), ([], 0.0, 0.0)],
)
def test_ideal_server_refuses_what_cannot_finish_in_time(
    due_s: list[float], lead_s: float, refused: float
) -> None:
    assert ideal_refused(due_s, lead_s, 0.04, 0.1) == refused


@pytest.mark.parametrize(("times", "least", "most"), [(0.7, 0, 0.001), (2, 0.49, 0.51)])
def test_ideal_server_refuses_the_excess_load(times: float, least: float, most: float) -> None:
    due_s = schedule("poisson", times / 0.006, 100.0, seed=1).tolist()
    assert least <= ideal_refused(due_s, 0.0, 0.006, 0.1) <= most
