"""The report: tables whose figures are whole, and a file that holds everything."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import orjson
import pytest
from rich.console import Console

from loadtests.bench.acceptance import judge
from loadtests.bench.measuring import Measured
from loadtests.bench.report import as_json, print_figures
from loadtests.bench.results import Round
from loadtests.bench.session import TABLE_WIDTH
from loadtests.errors import LoadTestError
from loadtests.reports import cut_short, print_judged, write

NAN = float("nan")


def round_of(**per_s: float) -> Round:
    ours = {"torchlane": Measured(per_s.pop("ours"), 5, 9, 100, 80)}
    return ours | {key: Measured(each, 10, 30, 200, 80) for key, each in per_s.items()}


RESULTS: dict[str, list[Round]] = {
    "json-32": [
        round_of(ours=6000, mosec=3000, plain_fastapi=1000),
        round_of(ours=6600, mosec=2000, plain_fastapi=1000),
        round_of(ours=6100, mosec=3100, plain_fastapi=1000),
    ],
    "batch-json": [
        {**round_of(ours=250, mosec=90), "limit": Measured(500, NAN, NAN, 2000, 0)},
    ]
    * 3,
    "image-binary": [round_of(ours=100, mosec=90, bare_asgi=200, limit=200)] * 3,
}
CONDITIONS = {"command": "bench", "server_core": 1, "generator": "wrk", "compiled": True}


def test_the_file_holds_rounds_summary_verdicts_and_conditions(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), record=True)
    write(tmp_path, "bench", as_json(RESULTS, judge(RESULTS, CONDITIONS), CONDITIONS), console)
    read: dict[str, Any] = orjson.loads((tmp_path / "bench.json").read_bytes())
    assert read["command"] == "bench"
    mosec = read["workloads"]["json-32"]["servers"]["mosec"]
    assert mosec["requests_per_s"] == {"median": 3000, "low": 2000, "high": 3100}
    assert mosec["ours_over_theirs"]["requests_per_s"]["high"] == 3.3
    limit = read["workloads"]["batch-json"]["servers"]["limit"]
    assert limit["p50_ms"]["median"] is None
    first = read["workloads"]["json-32"]["rounds"][0]
    assert first["mosec"]["requests_per_s"] == 3000
    assert read["acceptance"][0]["verdict"] == "aim met"


def test_tables_never_truncate_names_or_figures() -> None:
    out = io.StringIO()
    console = Console(file=out, width=TABLE_WIDTH)
    print_figures(console, RESULTS)
    print_judged(console, judge(RESULTS, CONDITIONS))
    text = out.getvalue()
    for figure in ("6,000..6,600", "mosec", "2.00x", "0.50x", "parsing and forward alone"):
        assert figure in text
    for figure in ("one-connection", "<= 0.7", "not measured", "CPU over bare ASGI"):
        assert figure in text
    assert "missed, the other is met" in text
    assert "…" not in text


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (LoadTestError("mosec is gone"), "mosec is gone"),
        (KeyboardInterrupt(), "interrupted"),
        (SystemExit(143), "interrupted"),
        (ZeroDivisionError(), "ZeroDivisionError"),
    ],
)
def test_incomplete_report_says_why(error: BaseException, why: str) -> None:
    assert cut_short() is None
    try:
        raise error
    except type(error):
        assert cut_short() == why
