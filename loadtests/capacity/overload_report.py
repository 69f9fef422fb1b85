"""Reports an overload measurement, for people and machines."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rich.console import Console

from loadtests.bench.launch import TITLES
from loadtests.capacity.verdicts import Load, Measured
from loadtests.reports import Json, Judged, table_of

COLUMNS = (
    *("load", "server", "offered/s", "in time/s", "late", "refused", "errors", "wrong"),
    *("p50 ms", "p99 ms", "p99 refused", "lag", "hint/truth", "CPU us", "stalled"),
)
LEGEND = (
    "Open loop, Poisson arrivals; load: times the capacity; latencies count from the moment at "
    "which a request was due. docs/load-testing.md, Under overload, explains each column."
)


def print_report(console: Console, results: Sequence[Measured]) -> None:
    """Print a table for each model, with the servers of each load side by side."""
    for case in dict.fromkeys(each.case for each in results):
        of_case = [each for each in results if each.case == case]
        table = table_of(COLUMNS, of_case[0].title, names=2)
        pairs = [(each, load) for each in of_case for load in each.loads]
        last = None
        for measured, load in sorted(pairs, key=lambda pair: pair[1].times):
            if last not in (None, load.times):
                table.add_section()
            last = load.times
            table.add_row(*cells(measured, load))
        console.print(table)
        for note in notes(of_case):
            console.print(note, markup=False)
    console.print(LEGEND)


def cells(measured: Measured, load: Load) -> tuple[str, ...]:
    """Return one row, in the order of `COLUMNS`."""
    trial, hints = load.trial, load.trial.hints
    told = f"{hints.median_ratio:.2f}, {hints.within / hints.judged:.0%}" if hints.judged else ""
    ideal = "" if load.ideal_refused is None else f" ({load.ideal_refused:.1%})"
    refused_ms = trial.refused_p99_ms
    return (
        f"{load.times:g}x" + ("*" if trial.doubts() else ""),
        TITLES[measured.server],
        f"{trial.offered_per_s:,.0f}",
        f"{trial.goodput_per_s:,.1f}",
        _share(trial.late, trial.requests),
        _share(trial.refused, trial.requests) + ideal,
        str(trial.errors),
        str(trial.wrong),
        f"{trial.p50_ms:,.1f}",
        f"{trial.p99_ms:,.1f}",
        "" if refused_ms is None else f"{refused_ms:,.1f}",
        f"{trial.lag_p99_ms:,.1f}",
        told,
        f"{load.cpu_us:,.0f}",
        f"{load.stalled:.1%}",
    )


def notes(of_case: Sequence[Measured]) -> list[str]:
    """Return what a reader of one model's table must know."""
    holds = (f"{TITLES[each.server]} {each.capacity_per_s:,.0f}/s" for each in of_case)
    lines = [f"capacity: {', '.join(holds)}"]
    if any(load.ideal_refused is not None for each in of_case for load in each.loads):
        lines.append(
            "refused, in brackets: the share that a server without any variance would have had to "
            "refuse of the same arrivals"
        )
    for each in of_case:
        for load in each.loads:
            where = f"{TITLES[each.server]} at {load.times:g}x"
            lines += [f"* {where}: not the intended load: {d}" for d in load.trial.doubts()]
            if load.trial.errors or load.trial.wrong:
                told = [load.trial.first_wrong, *load.trial.failures]
                lines.append(f"{where}: {'; '.join(filter(None, told))[:300]}")
    return lines


def as_json(results: Sequence[Measured], lines: Sequence[Judged], conditions: Json) -> Json:
    """Return all measurements and their conditions."""
    return {
        "kind": "overload",
        "conditions": conditions,
        "results": [dataclasses.asdict(each) for each in results],
        "acceptance": [dataclasses.asdict(each) for each in lines],
    }


def _share(number: int, of: int) -> str:
    return f"{number / of:.2%}" if number else "0"
