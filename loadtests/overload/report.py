"""The table: on the terminal, as Markdown for documents, and all figures as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from rich import box
from rich.console import Console
from rich.table import Table

from loadtests.bench.references import TITLES
from loadtests.overload.ladder import HELD
from loadtests.overload.loads import Load
from loadtests.overload.measuring import Measured
from loadtests.overload.verdicts import Judged

JSON_FILE, MARKDOWN_FILE = "overload.json", "overload.md"
COLUMNS = (
    *("load", "server", "offered/s", "in time/s", "late", "refused", "errors", "wrong"),
    *("p50 ms", "p99 ms", "p99 refused", "lag", "hint/truth", "CPU us", "stalled"),
)
VERDICT_COLUMNS = ("model", "figure", "wanted", "measured", "")
LEGEND = (
    "Open loop, Poisson arrivals; load: times the capacity, which is what the same server answered "
    "in a closed loop without deadlines; or, of digits, where less than "
    f"{HELD:.0%} of that comes in time in an open loop, the most that came in time there. Times "
    "count from the moment at which a request was due. In time: right "
    "answers within the deadline. Late: right answers after it, 408, 504 and none at all. Refused: "
    "429 and 503. p50, p99: of all that were not refused. Lag: p99 of the generator's own, in ms. "
    "Hint/truth: median of retry_after_ms over the time until what was accepted before had been "
    "answered, and the share within a factor 2, where either is above 20 ms. CPU: of the server "
    "per request, answered or not. Stalled: share of the time, before and after, in which the "
    "server's core did not run what wanted it, without a load."
)
Json = dict[str, Any]
Cells = tuple[str, ...]


def rows(results: Sequence[Measured]) -> Iterator[tuple[Measured, Load, Cells]]:
    """The cells of one model's table, the servers of each load side by side."""
    pairs = [(each, load) for each in results for load in each.loads]
    for measured, load in sorted(pairs, key=lambda pair: pair[1].offer.times):
        yield measured, load, _cells(measured, load)


def _cells(measured: Measured, load: Load) -> Cells:
    hints = load.hints
    told = f"{hints.median_ratio:.2f}, {hints.share_within:.0%}" if hints.judged else ""
    ideal = "" if load.ideal_refused is None else f" ({load.ideal_refused:.1%})"
    return (
        f"{load.offer.times:g}x" + ("*" if load.doubt else ""),
        TITLES[measured.server],
        f"{load.offered_per_s:,.0f}",
        f"{load.goodput_per_s:,.1f}",
        _share(load.late, load.requests),
        _share(load.refused, load.requests) + ideal,
        str(load.errors),
        str(load.wrong),
        _ms(load.p50_ms),
        _ms(load.p99_ms),
        _ms(load.p99_refused_ms),
        _ms(load.lag_p99_ms),
        told,
        f"{load.cpu_us:,.0f}",
        f"{load.stalled:.1%}",
    )


def titles(results: Sequence[Measured], case_titles: Mapping[str, str]) -> dict[str, list[str]]:
    """What stands above the table of each model, and below it."""
    found: dict[str, list[str]] = {}
    for case in dict.fromkeys(each.case for each in results):
        of_case = [each for each in results if each.case == case]
        lines = [case_titles[case]]
        capacities = ", ".join(
            f"{TITLES[each.server]} {each.capacity_per_s:,.0f}/s "
            f"({each.closed_per_s:,.0f} in a closed loop)"
            for each in of_case
        )
        lines.append(f"capacity: {capacities}")
        shares = {each.share for each in of_case}
        if shares != {None}:
            limited = ", ".join(f"{share:g}" for share in sorted(s for s in shares if s))
            lines.append(
                f"every server on {limited} of a core by the kernel's quota, so that the "
                "generator can offer multiples of what it holds"
            )
        if any(load.ideal_refused is not None for each in of_case for load in each.loads):
            lines.append(
                "refused, in brackets: what a server without any variance would have had to "
                "refuse of the same arrivals"
            )
        lines += [
            f"* {TITLES[each.server]} at {load.offer.times:g}x: not what was to be offered: "
            f"{load.doubt}"
            for each in of_case
            for load in each.loads
            if load.doubt
        ]
        lines += [
            f"{TITLES[each.server]} at {load.offer.times:g}x: first error: {load.first_error}"
            for each in of_case
            for load in each.loads
            if load.first_error
        ]
        found[case] = lines
    return found


def print_report(
    console: Console,
    results: Sequence[Measured],
    lines: Sequence[Judged],
    case_titles: Mapping[str, str],
) -> None:
    """Everything for people."""
    for case, (title, *notes) in titles(results, case_titles).items():
        table = Table(box=box.SIMPLE, title=title, title_justify="left", pad_edge=False)
        for column in COLUMNS:
            right = column not in ("load", "server")
            table.add_column(column, justify="right" if right else "left", no_wrap=True)
        last = None
        for _, load, cells in rows([each for each in results if each.case == case]):
            if last is not None and last != load.offer.times:
                table.add_section()
            last = load.offer.times
            table.add_row(*cells)
        console.print(table)
        for note in notes:
            console.print(note, markup=False)
    console.print(LEGEND)
    table = Table(box=box.SIMPLE, title="acceptance", title_justify="left", pad_edge=False)
    for column in VERDICT_COLUMNS:
        table.add_column(column, no_wrap=True)
    for line in lines:
        table.add_row(line.case, line.what, line.wanted, line.measured, line.verdict)
    console.print(table)
    for doubt in sorted({f"{line.case}: {line.doubt}" for line in lines if line.doubt}):
        console.print(f"not judged: {doubt}", markup=False)


def markdown(
    results: Sequence[Measured],
    lines: Sequence[Judged],
    case_titles: Mapping[str, str],
    conditions: Json,
) -> str:
    """The same for a document."""
    said = [f"`{conditions['command']}`, {conditions['date']}, {conditions['processor']}", ""]
    for case, (title, *notes) in titles(results, case_titles).items():
        of_case = [each for each in results if each.case == case]
        said += [f"**{title}**", "", *_table(COLUMNS, [cells for *_, cells in rows(of_case)]), ""]
        said += [f"- {note}" for note in notes] + [""]
    said += [LEGEND, ""]
    cells = [(each.case, each.what, each.wanted, each.measured, each.verdict) for each in lines]
    said += _table(VERDICT_COLUMNS, cells)
    return "\n".join(said) + "\n"


def as_json(results: Sequence[Measured], lines: Sequence[Judged], conditions: Json) -> Json:
    """Everything that was measured, and under which conditions."""
    return {
        **conditions,
        "results": [
            {
                **_without(each, "loads", "tried"),
                "loads": [_load(load) for load in each.loads],
                "tried": [_load(load) for load in each.tried],
            }
            for each in results
        ],
        "acceptance": [dataclasses.asdict(each) for each in lines],
    }


def write(folder: Path, found: Json, text: str) -> None:
    """Both files; the figures first: they are what cannot be made again."""
    (folder / JSON_FILE).write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2) + b"\n")
    (folder / MARKDOWN_FILE).write_text(text)


def _load(load: Load) -> Json:
    hints = load.hints
    return {
        **_without(load, "hints", "offer"),
        **dataclasses.asdict(load.offer),
        "goodput_per_s": load.goodput_per_s,
        "refused_share": load.refused_share,
        "doubt": load.doubt,
        "hints": {
            "count": len(hints.told_ms),
            "judged": hints.judged,
            "median_ratio": hints.median_ratio,
            "share_within": hints.share_within,
        },
    }


def _without(made: Any, *names: str) -> Json:
    fields = [each.name for each in dataclasses.fields(made) if each.name not in names]
    return {name: getattr(made, name) for name in fields}


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def _share(number: int, of: int) -> str:
    return f"{number / of:.2%}" if number else "0"


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}"
