"""Medians, spreads and ratios: tables for people, a JSON file for machines."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from rich import box
from rich.console import Console
from rich.table import Table

from loadtests.bench.acceptance import HALF_LOAD, Demand, Judged, is_met, judge
from loadtests.bench.references import title_of
from loadtests.bench.results import Entry, Figure, Results, Round, Spread, keys, ratios, values
from loadtests.bench.workloads import OURS, WORKLOADS

REPORT_FILE = "bench.json"
FIGURES: tuple[Figure, ...] = (
    *("requests_per_s", "p50_ms", "p99_ms", "cpu_us", "busy"),
    *("lag_p99_ms", "stalled"),
)
MOST_STALLED = 0.005  # to catch up takes as long again: together the slowest 1 %
Json = dict[str, Any]


def judged(results: Results, conditions: Mapping[str, Any]) -> list[Judged]:
    """The acceptance, line by line.

    Args:
        results: of the workloads.
        conditions: under which they were measured.
    """

    def doubts(demand: Demand) -> str | None:
        if conditions["server_core"] is None:
            return "cores not pinned"
        if "bare" in demand.what and conditions["generator"] != "wrk":
            return "needs wrk"
        if demand.workload == "one-connection" and "p99" in demand.what:
            tail = p99_over_p50(HALF_LOAD, OURS)
            if tail and statistics.median(tail) > demand.least:  # what is met is met all the same
                return _stood_still(values(results.get(HALF_LOAD, []), OURS, "stalled"))
        return None

    def ours_over(figure: Figure) -> Callable[[str, str], list[float]]:
        return lambda workload, key: ratios(results.get(workload, []), key, figure)

    def p99_over_p50(workload: str, key: str) -> list[float]:
        rounds = results.get(workload, [])
        pairs = zip(values(rounds, key, "p99_ms"), values(rounds, key, "p50_ms"), strict=True)
        return [p99 / p50 for p99, p50 in pairs]

    return judge(
        {
            "requests_per_s": ours_over("requests_per_s"),
            "p50_ms": ours_over("p50_ms"),
            "p99_over_p50": p99_over_p50,
        },
        doubts,
    )


def _stood_still(stalled: Sequence[float]) -> str | None:
    share = statistics.median(stalled) if stalled else 0.0
    if share <= MOST_STALLED:
        return None
    return f"the server's core stood still for {share:.1%} of the time without any load"


def title_of_workload(name: str) -> str:
    """A workload, for people."""
    known = {workload.name: workload.title for workload in WORKLOADS}
    share = name.partition(" at ")[2]
    return known.get(name) or f"open loop, single JSON, at {float(share):.0%} of its closed loop"


def print_figures(console: Console, results: Results) -> None:
    """A table for each workload: the medians, with the lowest and highest round."""
    for name, rounds in results.items():
        table = Table(box=box.SIMPLE, title=title_of_workload(name), pad_edge=False)
        table.title_justify = "left"
        table.add_column("server", no_wrap=True)
        for heading in ("requests/s", "min..max", "p50 ms", "p99 ms", "CPU us", "busy", "ours is"):
            table.add_column(heading, justify="right", no_wrap=True)
        for key in keys(rounds):
            speed = Spread.of(values(rounds, key, "requests_per_s"))
            times = ratios(rounds, key, "requests_per_s")
            table.add_row(
                title_of(key),
                f"{speed.median:,.0f}",
                f"{speed.low:,.0f}..{speed.high:,.0f}",
                *(
                    _median(rounds, key, figure)
                    for figure in ("p50_ms", "p99_ms", "cpu_us", "busy")
                ),
                f"{Spread.of(times).median:.2f}x" if times and "open" not in name else "",
            )
        console.print(table)
    console.print(
        "medians of the rounds; CPU: of all processes of a server per request; busy: cores they "
        "kept busy; ours is: our requests/s over theirs, by neighbours in each round; where no "
        "input repeats, Torchlane runs without its cache, as the others do; with it in its own row"
    )


def print_acceptance(console: Console, lines: Sequence[Judged]) -> None:
    """What this project demands of itself, and whether it is met."""
    table = Table(box=box.SIMPLE, title="acceptance", title_justify="left", pad_edge=False)
    for heading in ("workload", "figure"):
        table.add_column(heading, no_wrap=True)
    for heading in ("measured", "min..max", "at least", "aim"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for line in lines:
        demand, spread = line.demand, Spread.of(line.rounds) if line.rounds else None
        sign = "<= " if demand.lower else ""
        instead = line.verdict == "missed" and is_met(line, lines)
        table.add_row(
            demand.workload,
            demand.what,
            f"{spread.median:.2f}" if spread else "",
            f"{spread.low:.2f}..{spread.high:.2f}" if spread else "",
            f"{sign}{demand.least:g}",
            f"{sign}{demand.aim:g}" if demand.aim is not None else "",
            "missed, the other is met" if instead else line.verdict,
        )
    console.print(table)
    for doubt in sorted({line.doubt for line in lines if line.doubt and line.rounds}):
        console.print(f"not judged: {doubt}")


def print_forwards(console: Console, found: Json) -> None:
    """Microseconds per item by batch size, and the share of the plain script's time."""
    table = Table(box=box.SIMPLE, title="one forward, one thread: us per item (x plain script)")
    table.add_column("batch", justify="right")
    names = list(next(iter(found["sizes"].values())))
    for name in names:
        table.add_column(name, justify="right")
    for size, measured in found["sizes"].items():
        cells = [f"{each['us_per_item']:.1f} ({each['ratio']:.2f})" for each in measured.values()]
        table.add_row(size, *cells)
    console.print(table)


def as_json(results: Results, lines: Sequence[Judged], conditions: Mapping[str, Any]) -> Json:
    """Everything that was measured, and under which conditions."""
    return {
        **conditions,
        "workloads": {name: _workload(rounds) for name, rounds in results.items()},
        "acceptance": [
            {
                **dataclasses.asdict(line.demand),
                "median": line.median,
                "rounds": list(line.rounds),
                "verdict": line.verdict,
                "doubt": line.doubt,
                "met": is_met(line, lines),
            }
            for line in lines
        ],
    }


def write_json(report: Json, folder: Path) -> Path:
    """Write the report; makes the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / REPORT_FILE
    file.write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2) + b"\n")
    return file


def _workload(rounds: Sequence[Round]) -> Json:
    servers: Json = {}
    for key in keys(rounds):
        own: Json = {name: Spread.of(values(rounds, key, name)) for name in FIGURES}
        over = {name: ratios(rounds, key, name) for name in FIGURES}
        own["ours_over_theirs"] = {name: Spread.of(made) for name, made in over.items() if made}
        servers[key] = own
    return {"servers": servers, "rounds": [[_entry(entry) for entry in each] for each in rounds]}


def _entry(entry: Entry) -> Json:
    return {"server": entry.key, **dataclasses.asdict(entry.measured)}


def _median(rounds: Sequence[Round], key: str, figure: Figure) -> str:
    median = Spread.of(values(rounds, key, figure)).median
    return "" if math.isnan(median) else f"{median:,.2f}" if median < 100 else f"{median:,.0f}"
