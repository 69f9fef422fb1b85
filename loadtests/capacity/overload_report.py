"""Reports an overload measurement: a table with the servers of each load side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from loadtests.openloop.trial import TrialResult
from loadtests.reports import table_of

COLUMNS = (
    *("load", "server", "offered/s", "in time/s", "late", "refused", "errors", "wrong"),
    *("p50 ms", "p99 ms", "p99 refused", "lag", "hint/truth", "CPU us", "stalled"),
)
LEGEND = (
    "Open loop, Poisson arrivals; load: times the capacity; latencies count from the moment at "
    "which a request was due. docs/load-testing.md, Under overload, explains each column."
)


@dataclass(frozen=True, slots=True)
class LoadResult:
    """One load.

    Attributes:
        times: multiple of the capacity.
        cpu_us: of all processes of the server, user and system, per request of any outcome.
        stalled: share of the time before and after in which the server's core did not run a ready
            process, without any load.
        ideal_refused: share that a server without any variance would have rejected, for the same
            arrivals; None: unknown.
    """

    times: float
    trial: TrialResult
    cpu_us: float
    stalled: float
    ideal_refused: float | None


@dataclass(frozen=True, slots=True)
class OverloadResult:
    """One server with one model.

    Attributes:
        capacity_per_s: most correct, timely answers near the highest sustained rate.
        loads: in ascending order.
        trials: of the search for the capacity.
    """

    model: str
    server: str
    capacity_per_s: float
    loads: tuple[LoadResult, ...]
    trials: tuple[TrialResult, ...]


def print_report(console: Console, results: Sequence[OverloadResult]) -> None:
    """Print a table for each model, and what else a reader must know."""
    for model in dict.fromkeys(each.model for each in results):
        of_model = [each for each in results if each.model == model]
        table = table_of(COLUMNS, model, names=2)
        pairs = [(each.server, load) for each in of_model for load in each.loads]
        for server, load in sorted(pairs, key=lambda pair: pair[1].times):
            table.add_row(*_cells(server, load))
        console.print(table)
        holds = (f"{each.server} {each.capacity_per_s:,.0f}/s" for each in of_model)
        console.print(f"capacity: {', '.join(holds)}")
        for server, load in pairs:
            where = f"{server} at {load.times:g}x"
            for doubt in load.trial.doubts():
                console.print(f"* {where}: not the intended load: {doubt}", markup=False)
            if load.trial.errors or load.trial.wrong:
                reasons = [load.trial.first_wrong, *load.trial.failures]
                console.print(f"{where}: {'; '.join(filter(None, reasons))[:300]}", markup=False)
    console.print(LEGEND)


def _cells(server: str, load: LoadResult) -> tuple[str, ...]:
    trial, hints = load.trial, load.trial.hints
    hint_text = (
        f"{hints.median_ratio:.2f}, {hints.within / hints.judged:.0%}" if hints.judged else ""
    )
    ideal = "" if load.ideal_refused is None else f" ({load.ideal_refused:.1%})"
    return (
        f"{load.times:g}x" + ("*" if trial.doubts() else ""),
        server,
        f"{trial.offered_per_s:,.0f}",
        f"{trial.goodput_per_s:,.1f}",
        format_share(trial.late, trial.requests),
        format_share(trial.refused, trial.requests) + ideal,
        str(trial.errors),
        str(trial.wrong),
        f"{trial.p50_ms:,.1f}",
        f"{trial.p99_ms:,.1f}",
        "" if trial.refused_p99_ms is None else f"{trial.refused_p99_ms:,.1f}",
        f"{trial.lag_p99_ms:,.1f}",
        hint_text,
        f"{load.cpu_us:,.0f}",
        f"{load.stalled:.1%}",
    )


def format_share(number: int, of: int) -> str:
    """Format a share in percent."""
    return f"{number / of:.2%}" if number else "0"
