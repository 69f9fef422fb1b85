"""The report: tables whose figures are whole, a file that holds everything, and the plot."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import orjson
import pytest
from rich.console import Console

from loadtests.bench.__main__ import TABLE_WIDTH
from loadtests.bench.measuring import Measured
from loadtests.bench.plot import png_of
from loadtests.bench.report import (
    REPORT_FILE,
    as_json,
    judged,
    print_acceptance,
    print_figures,
    write_json,
)
from loadtests.bench.results import Entry, Round

NAN = float("nan")


def round_of(**per_s: float) -> Round:
    ours = Entry("torchlane", Measured(per_s.pop("ours"), 5, 9, 100, 80))
    others = [
        Entry(key.replace("_and_", "+"), Measured(each, 10, 30, 200, 80))
        for key, each in per_s.items()
    ]
    return [ours, *others, ours]


RESULTS: dict[str, list[Round]] = {
    "json-32": [
        round_of(ours=6000, mosec=3000, mosec_and_plan=3100, plain_fastapi=1000),
        round_of(ours=6600, mosec=2000, mosec_and_plan=3100, plain_fastapi=1000),
        round_of(ours=6100, mosec=3100, mosec_and_plan=3100, plain_fastapi=1000),
    ],
    "batch-json": [
        [
            *round_of(ours=200, mosec=90)[:2],
            Entry("limit", Measured(500, NAN, NAN, 2000, 0)),
            Entry("torchlane", Measured(300, 5, 9, 100, 80)),
        ]
    ]
    * 3,
    "open-loop at 0.5": [[Entry("torchlane", Measured(3000, 2, 5, 100, 80, lag_p99_ms=0.4))]] * 3,
}
CONDITIONS = {
    "processor": "a $quick$ one",  # not to be taken for mathematics
    "cores": 2,
    "rounds": 3,
    "seconds": 4,
    "date": "2026-01-01",
    "server_core": 1,
    "generator": "wrk",
    "compiled": True,
}


def test_the_acceptance_is_judged_by_the_medians() -> None:
    lines = {(line.demand.workload, line.demand.what): line for line in judged(RESULTS, CONDITIONS)}
    json_32 = lines["json-32", "over mosec"]
    assert (json_32.median, json_32.verdict) == (2.0, "aim met")
    assert lines["json-32", "over plain FastAPI"].verdict == "missed"
    assert lines["json-32", "over LitServe"].verdict == "not measured"
    batch = lines["batch-json", "over parsing and forward alone"]
    assert (batch.median, batch.verdict) == (0.5, "met")
    half = lines["one-connection", "p99 over p50 at half load"]
    assert (half.median, half.verdict) == (2.5, "met")


@pytest.mark.parametrize(
    ("otherwise", "doubt", "undoubted"),
    [
        ({"server_core": None}, "cores not pinned", 0),
        ({"generator": "asyncio"}, "needs wrk", 2),
    ],
)
def test_figures_that_prove_nothing_are_not_judged(
    otherwise: dict[str, Any], doubt: str, undoubted: int
) -> None:
    results = {
        "json-32": RESULTS["json-32"],
        "zipf": [round_of(ours=20_000, bare_asgi=30_000)] * 3,
    }
    lines = [line for line in judged(results, CONDITIONS | otherwise) if line.rounds]
    doubted = [line for line in lines if line.doubt is not None]
    assert {line.doubt for line in doubted} == {doubt}
    assert {line.verdict for line in doubted} == {"not judged"}
    assert len(lines) - len(doubted) == undoubted
    few = judged({"json-32": RESULTS["json-32"][:2]}, CONDITIONS)
    assert few[0].verdict == "not judged"
    assert few[0].doubt == "2 of 3 rounds"


@pytest.mark.parametrize(
    ("p99_ms", "stalled", "verdict"),
    [
        (5, 0.0, "met"),
        (5, 0.02, "met"),  # all the same
        (9, 0.004, "missed"),
        (9, 0.02, "not judged"),
    ],
)
def test_a_tail_that_the_machine_makes_is_not_judged(
    p99_ms: float, stalled: float, verdict: str
) -> None:
    ours = Measured(3000, 2, p99_ms, 100, 80, lag_p99_ms=0.4, stalled=stalled)
    results = {"open-loop at 0.5": [[Entry("torchlane", ours)]] * 3}
    (line,) = (line for line in judged(results, CONDITIONS) if line.rounds)
    assert line.verdict == verdict
    assert (line.doubt is not None) is (verdict == "not judged")
    assert line.doubt is None or "2.0% of the time" in line.doubt


def test_the_file_holds_rounds_summary_verdicts_and_conditions(tmp_path: Path) -> None:
    report = as_json(RESULTS, judged(RESULTS, CONDITIONS), {"command": "bench", **CONDITIONS})
    file = write_json(report, tmp_path / "made" / "here")
    assert file == tmp_path / "made" / "here" / REPORT_FILE
    read: dict[str, Any] = orjson.loads(file.read_bytes())
    assert read["command"] == "bench"
    mosec = read["workloads"]["json-32"]["servers"]["mosec"]
    assert mosec["requests_per_s"] == {"median": 3000, "low": 2000, "high": 3100}
    assert mosec["ours_over_theirs"]["requests_per_s"]["high"] == 3.3
    limit = read["workloads"]["batch-json"]["servers"]["limit"]
    assert limit["p50_ms"]["median"] is None
    first = read["workloads"]["json-32"]["rounds"][0]
    assert [entry["server"] for entry in first][:2] == ["torchlane", "mosec"]
    assert read["acceptance"][0]["verdict"] == "aim met"
    assert read["acceptance"][0]["met"] is True


def test_tables_have_names_and_figures_whole() -> None:
    out = io.StringIO()
    console = Console(file=out, width=TABLE_WIDTH)
    print_figures(console, RESULTS)
    print_acceptance(console, judged(RESULTS, CONDITIONS))
    text = out.getvalue()
    for figure in ("6,000..6,600", "mosec, our forward", "2.00x", "parsing and forward alone"):
        assert figure in text
    assert "at 50% of its closed loop" in text
    for figure in ("one-connection", "<= 0.7", "not measured", "over Triton's cache (bare / 4)"):
        assert figure in text
    assert "…" not in text


def test_the_plot_is_a_picture_of_all_workloads() -> None:
    assert png_of(RESULTS, CONDITIONS).startswith(b"\x89PNG")
    assert png_of({"json-32": RESULTS["json-32"]}, CONDITIONS).startswith(b"\x89PNG")
