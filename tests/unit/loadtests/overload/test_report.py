"""The table says what was measured, for people and for machines."""

from __future__ import annotations

import json
from pathlib import Path

import orjson
from rich.console import Console

from loadtests.overload import report
from loadtests.overload.measuring import Measured
from loadtests.overload.verdicts import judge
from tests.unit.loadtests.overload.made import hints, load, measured

TITLES = {"linear": "a model of linear cost", "digits": "digits, JSON"}
CONDITIONS = {"command": "python -m loadtests overload", "date": "today", "processor": "a core"}
RESULTS = (
    measured(
        "linear",
        load(0.7, ideal_refused=0.001),
        load(4.0, refused=750, hints=hints((50, 60), (50, 200)), ideal_refused=0.748),
    ),
    measured("linear", load(0.7, p99_ms=None), load(4.0, late=990), server="plain_fastapi"),
    Measured("digits", "torchlane", 2500.0, 1500.0, 0.3, (load(2.0, generator_cpu=0.95),)),
    Measured("digits", "mosec", 900.0, 900.0, 0.3, (load(2.0, errors=1, first_error="500: oops"),)),
)


def test_servers_stand_side_by_side_under_each_load() -> None:
    cells = [made for *_, made in report.rows(RESULTS[:2])]
    assert [made[:2] for made in cells] == [
        ("0.7x", "Torchlane"),
        ("0.7x", "plain FastAPI"),
        ("4x", "Torchlane"),
        ("4x", "plain FastAPI"),
    ]
    by_name = [dict(zip(report.COLUMNS, made, strict=True)) for made in cells]
    assert by_name[2]["refused"] == "75.00% (74.8%)"
    assert by_name[2]["hint/truth"] == "0.54, 50%"
    assert by_name[3]["late"] == "99.00%"
    assert by_name[1]["p99 ms"] == ""


def test_notes_say_what_was_done_and_what_is_to_be_doubted() -> None:
    notes = "\n".join(report.titles(RESULTS, TITLES)["digits"])
    assert (
        "capacity: Torchlane 1,500/s (2,500 in a closed loop), mosec 900/s (900 in a closed loop)"
        in notes
    )
    assert "on 0.3 of a core by the kernel's quota" in notes
    assert "* Torchlane at 2x: not what was to be offered: the generator took 95%" in notes
    assert "mosec at 2x: first error: 500: oops" in notes
    assert "quota" not in "\n".join(report.titles(RESULTS, TITLES)["linear"])


def test_it_is_printed_and_written(tmp_path: Path) -> None:
    lines = judge(RESULTS)
    console = Console(record=True, width=160)
    report.print_report(console, RESULTS, lines, TITLES)
    printed = console.export_text()
    text = report.markdown(RESULTS, lines, TITLES, CONDITIONS)
    report.write(tmp_path, report.as_json(RESULTS, lines, CONDITIONS), text)
    assert (tmp_path / report.MARKDOWN_FILE).read_text() == text
    for said in (printed, text):
        assert "a model of linear cost" in said
        assert "goodput at 4x over the peak" in said
        assert "first error: 500: oops" in said
    assert text.startswith("`python -m loadtests overload`, today, a core\n")
    assert text.count("| Torchlane |") == 3
    made = json.loads((tmp_path / report.JSON_FILE).read_bytes())
    assert [each["server"] for each in made["results"]][:2] == ["torchlane", "plain_fastapi"]
    at_four = made["results"][0]["loads"][1]
    assert (at_four["times"], at_four["refused"], at_four["refused_share"]) == (4.0, 750, 0.75)
    assert at_four["hints"]["judged"] == 2
    assert {each["verdict"] for each in made["acceptance"]} <= {
        *("met", "missed", "not judged", "not measured")
    }
    assert orjson.dumps(made)
