"""Medians, spreads and ratios of the rounds: a table for people, a JSON file for machines."""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson
from rich import box
from rich.console import Console
from rich.table import Table

from loadtests.bench.generator import Run

REPORT_FILE = "bench.json"
Json = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """One run of one server."""

    requests_per_s: float
    p50_ms: float
    p99_ms: float

    @classmethod
    def of(cls, run: Run) -> Measured:
        """The figures of a run that has answers."""
        latencies_ms = sorted(seconds * 1000 for seconds in run.latencies_s)
        return cls(run.requests_per_s, percentile(latencies_ms, 50), percentile(latencies_ms, 99))


@dataclasses.dataclass(frozen=True, slots=True)
class Spread:
    """One figure over the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return cls(statistics.median(values), min(values), max(values))


Round = Mapping[str, Measured]  # by the server's name


def percentile(ascending: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile: the smallest value that at least `percent` do not exceed."""
    rank = math.ceil(len(ascending) * percent / 100)
    return ascending[max(0, rank - 1)]


def spread(rounds: Sequence[Round], server: str, figure: str) -> Spread:
    """A figure of `Measured` of one server over the rounds."""
    return Spread.of([getattr(each[server], figure) for each in rounds])


def ratio(rounds: Sequence[Round], server: str, reference: str) -> Spread:
    """Requests per second over the reference's, per round: what slows a whole round cancels out."""
    return Spread.of(
        [each[server].requests_per_s / each[reference].requests_per_s for each in rounds]
    )


def as_json(rounds: Sequence[Round], reference: str, conditions: Mapping[str, Any]) -> Json:
    """Everything that was measured, and under which conditions."""
    servers = {
        name: {
            **{
                field.name: dataclasses.asdict(spread(rounds, name, field.name))
                for field in dataclasses.fields(Measured)
            },
            "ratio": dataclasses.asdict(ratio(rounds, name, reference)),
        }
        for name in rounds[0]
    }
    each_round = [{name: dataclasses.asdict(m) for name, m in each.items()} for each in rounds]
    return {**conditions, "reference": reference, "servers": servers, "rounds": each_round}


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


def write_json(report: Json, folder: Path) -> Path:
    """Write the report; makes the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / REPORT_FILE
    file.write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2) + b"\n")
    return file


def print_table(console: Console, rounds: Sequence[Round], reference: str) -> None:
    """The medians, with the lowest and highest round."""
    table = Table(box=box.SIMPLE, pad_edge=False, collapse_padding=True)
    table.add_column("server", no_wrap=True)
    for heading in ("requests/s", "min..max", "p50 ms", "p99 ms", "ratio", "min..max"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name in rounds[0]:
        speed, times = spread(rounds, name, "requests_per_s"), ratio(rounds, name, reference)
        table.add_row(
            name,
            f"{speed.median:,.0f}",
            f"{speed.low:,.0f}..{speed.high:,.0f}",
            f"{spread(rounds, name, 'p50_ms').median:.2f}",
            f"{spread(rounds, name, 'p99_ms').median:.1f}",
            f"{times.median:.2f}",
            f"{times.low:.2f}..{times.high:.2f}",
        )
    console.print(table)
    console.print(f"medians of {len(rounds)} round(s); ratio: requests/s over those of {reference}")


def machine() -> Json:
    """What the numbers were measured on, and how busy it was."""
    return {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_average_before": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "fastapi": version("fastapi"),
        "uvicorn": version("uvicorn"),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
