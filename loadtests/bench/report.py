"""Reports medians, spreads and ratios: tables for people, JSON for machines."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from rich.console import Console

from loadtests.bench.launch import title_of
from loadtests.bench.results import Figure, Results, Round, Spread, keys, ratios, values
from loadtests.bench.workloads import WORKLOADS
from loadtests.reports import Json, Judged, table_of

FIGURES: tuple[Figure, ...] = ("requests_per_s", "p50_ms", "p99_ms", "cpu_us", "busy")
COLUMNS = (
    "server",
    "requests/s",
    "min..max",
    "p50 ms",
    "p99 ms",
    "CPU us",
    "busy",
    "ours is",
    "its CPU",
)
TITLES = {workload.name: workload.title for workload in WORKLOADS}


def print_figures(console: Console, results: Results) -> None:
    """Print a table for each workload: medians, with the lowest and highest round."""
    for name, rounds in results.items():
        table = table_of(COLUMNS, TITLES[name])
        for key in keys(rounds):
            speed = Spread.of(values(rounds, key, "requests_per_s"))
            times, cpu = (ratios(rounds, key, figure) for figure in ("requests_per_s", "cpu_us"))
            table.add_row(
                title_of(key),
                f"{speed.median:,.0f}",
                f"{speed.low:,.0f}..{speed.high:,.0f}",
                *(
                    _median(rounds, key, figure)
                    for figure in ("p50_ms", "p99_ms", "cpu_us", "busy")
                ),
                *(f"{Spread.of(each).median:.2f}x" if each else "" for each in (times, cpu)),
            )
        console.print(table)
    console.print(
        "medians of the rounds; CPU: of all processes of a server per request; busy: cores they "
        "kept busy; ours is: our requests/s over theirs, by round; its CPU: our CPU per request "
        "over theirs; Torchlane runs as `make serve` starts it, with its cache"
    )


def as_json(results: Results, lines: Sequence[Judged], conditions: Json) -> Json:
    """Return all measurements and their conditions."""
    return {
        **conditions,
        "workloads": {name: _workload(rounds) for name, rounds in results.items()},
        "acceptance": [dataclasses.asdict(line) for line in lines],
    }


def _workload(rounds: Sequence[Round]) -> Json:
    servers: Json = {}
    for key in keys(rounds):
        own: Json = {name: Spread.of(values(rounds, key, name)) for name in FIGURES}
        over = {name: ratios(rounds, key, name) for name in FIGURES}
        own["ours_over_theirs"] = {name: Spread.of(made) for name, made in over.items() if made}
        servers[key] = own
    return {"servers": servers, "rounds": rounds}


def _median(rounds: Sequence[Round], key: str, figure: Figure) -> str:
    median = Spread.of(values(rounds, key, figure)).median
    return "" if math.isnan(median) else f"{median:,.2f}" if median < 100 else f"{median:,.0f}"
