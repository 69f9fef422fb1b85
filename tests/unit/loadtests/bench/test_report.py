"""Figures of the benchmark: percentiles, spreads, ratios, and the report that holds them."""

from __future__ import annotations

import io
from pathlib import Path

import orjson
import pytest
from rich.console import Console

from loadtests.bench.generator import Run
from loadtests.bench.report import (
    REPORT_FILE,
    Measured,
    Spread,
    as_json,
    machine,
    percentile,
    print_table,
    ratio,
    spread,
    write_json,
)

ROUNDS = [
    {"ours": Measured(3000, 5, 9), "theirs": Measured(1000, 20, 90)},
    {"ours": Measured(1000, 7, 8), "theirs": Measured(500, 40, 99)},
    {"ours": Measured(4000, 6, 7), "theirs": Measured(800, 30, 80)},
]


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([7.0], 50, 7.0),
        ([1.0, 2.0], 50, 1.0),
        ([1.0, 2.0, 3.0], 50, 2.0),
        ([float(n) for n in range(1, 101)], 99, 99.0),
        ([float(n) for n in range(1, 201)], 99, 198.0),
        ([1.0, 2.0, 3.0], 100, 3.0),
        ([1.0, 2.0, 3.0], 0, 1.0),
    ],
)
def test_percentile_is_the_nearest_rank(
    values: list[float], percent: float, expected: float
) -> None:
    assert percentile(values, percent) == expected


def test_a_run_in_figures() -> None:
    run = Run(seconds=2.0, latencies_s=[0.004, 0.001, 0.003, 0.002], answered=9)
    assert Measured.of(run) == Measured(requests_per_s=2.0, p50_ms=2.0, p99_ms=4.0)


def test_spread_is_the_median_between_the_extremes() -> None:
    assert spread(ROUNDS, "ours", "requests_per_s") == Spread(3000, 1000, 4000)
    assert spread(ROUNDS, "theirs", "p50_ms") == Spread(30, 20, 40)


def test_ratio_is_taken_per_round_and_not_from_medians() -> None:
    # the medians alone would give 3000 / 800 = 3.75
    assert ratio(ROUNDS, "ours", "theirs") == Spread(3, 2, 5)
    assert ratio(ROUNDS, "theirs", "theirs") == Spread(1, 1, 1)


def test_the_report_holds_rounds_summary_and_conditions(tmp_path: Path) -> None:
    report = as_json(ROUNDS, "theirs", {"command": "bench", "machine": machine()})
    file = write_json(report, tmp_path / "made" / "here")
    assert file == tmp_path / "made" / "here" / REPORT_FILE
    read = orjson.loads(file.read_bytes())
    assert read["command"] == "bench"
    assert read["machine"]["torch"].startswith("2.")
    assert read["reference"] == "theirs"
    assert read["servers"]["ours"]["ratio"] == {"median": 3, "low": 2, "high": 5}
    assert read["servers"]["ours"]["p99_ms"] == {"median": 8, "low": 7, "high": 9}
    assert read["rounds"][1]["theirs"] == {"requests_per_s": 500, "p50_ms": 40, "p99_ms": 99}


def test_the_table_fits_80_columns_with_names_and_figures_whole() -> None:
    out = io.StringIO()
    big = Measured(43210, 123.45, 1234.5)
    print_table(Console(file=out, width=80), [{"plain FastAPI": big}], "plain FastAPI")
    for text in ("plain FastAPI", "43,210..43,210", "123.45", "1234.5", "1.00", "1.00..1.00"):
        assert text in out.getvalue()
