"""Evaluates and reports rounds: medians, spreads, and ratios within a round."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from rich.console import Console

from loadtests.bench.launch import TITLES
from loadtests.bench.measuring import TurnFigures
from loadtests.bench.workloads import OURS
from loadtests.reports import Json, table_of

Figure = Literal["requests_per_s", "p50_ms", "p99_ms", "cpu_us", "busy"]
FIGURES: tuple[Figure, ...] = ("requests_per_s", "p50_ms", "p99_ms", "cpu_us", "busy")
COLUMNS = (
    *("server", "requests/s", "min..max", "p50 ms", "p99 ms", "CPU us", "busy"),
    *("ours is", "min..max", "its CPU"),
)
Round: TypeAlias = Mapping[str, TurnFigures]  # by server
Results: TypeAlias = Mapping[str, Sequence[Round]]  # by workload, in words


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure over the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


def turns(servers: Sequence[str], number: int) -> list[str]:
    """Return the order of a round, which varies: no server always runs after the same one."""
    return [servers[at] for at in np.random.default_rng(number).permutation(len(servers))]


def servers_of(rounds: Sequence[Round]) -> list[str]:
    """Return the measured servers, ours first."""
    servers = dict.fromkeys(server for each in rounds for server in sorted(each))
    return sorted(servers, key=lambda server: server != OURS)


def values(rounds: Sequence[Round], server: str, figure: Figure) -> list[float]:
    return [getattr(each[server], figure) for each in rounds if server in each]


def ratios(rounds: Sequence[Round], server: str, figure: Figure) -> list[float]:
    """Return ours over another's by round: a temporary slowdown affects both and cancels out."""
    both = [each for each in rounds if server in each and OURS in each and server != OURS]
    pairs = zip(values(both, OURS, figure), values(both, server, figure), strict=True)
    return [ours / theirs for ours, theirs in pairs if theirs > 0]


def print_figures(console: Console, results: Results) -> None:
    """Print a table for each workload: medians, with the lowest and highest round."""
    for title, rounds in results.items():
        table = table_of(COLUMNS, title)
        for server in servers_of(rounds):
            of = {figure: Spread.of(values(rounds, server, figure)) for figure in FIGURES}
            speed, over = of["requests_per_s"], ratios(rounds, server, "requests_per_s")
            cpu, ratio = ratios(rounds, server, "cpu_us"), Spread.of(over) if over else None
            table.add_row(
                TITLES[server],
                f"{speed.median:,.0f}",
                f"{speed.low:,.0f}..{speed.high:,.0f}",
                *(_format(of[figure].median) for figure in FIGURES[1:]),
                *((f"{ratio.median:.2f}x", f"{ratio.low:.2f}..{ratio.high:.2f}") if ratio else ()),
                *((f"{statistics.median(cpu):.2f}x",) if cpu else ()),
            )
        console.print(table)
    console.print(
        "medians of the rounds; CPU: of all processes of a server per request; busy: cores they "
        "kept busy; ours is: our requests/s over theirs, by round; its CPU: our CPU per request "
        "over theirs; Torchlane runs as `make serve` starts it, with its cache"
    )


def as_json(results: Results, conditions: Json) -> Json:
    return {**conditions, "workloads": {name: _workload(each) for name, each in results.items()}}


def _workload(rounds: Sequence[Round]) -> Json:
    servers: Json = {}
    for server in servers_of(rounds):
        own: Json = {name: Spread.of(values(rounds, server, name)) for name in FIGURES}
        over = {name: ratios(rounds, server, name) for name in FIGURES}
        own["ours_over_theirs"] = {name: Spread.of(each) for name, each in over.items() if each}
        servers[server] = own
    return {"servers": servers, "rounds": rounds}


def _format(median: float) -> str:
    return f"{median:,.2f}" if median < 100 else f"{median:,.0f}"
