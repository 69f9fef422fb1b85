"""Two results side by side: what has changed by more than the tolerance, and for the worse.

Reads capacity.json of a search, run.json of a single run, and Locust's *_stats.csv.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson
from rich import box
from rich.console import Console
from rich.table import Table

from loadtests.arguments import tolerance

Better = Literal["higher", "lower"] | None  # None: shown, and not judged
CAPACITY, ANSWERED = "capacity, requests/s", "answered, requests/s"
# or there is nothing to compare; a kind of file tells some of them
SAME = ("workload", "arrivals", "slo_ms", "fail_ratio", "model", "rate", "requests")
TOLD = ("machine", "version", "precision")  # may be what is compared, but has to be said
LOCUST_TOTAL = "Aggregated"


class ComparisonError(Exception):
    """Two files cannot be compared; the message says why."""


@dataclass(frozen=True, slots=True)
class Result:
    """One file's figures.

    Attributes:
        kind: `capacity`, `run` or `locust`.
        conditions: what has to be equal, as far as the file tells.
        measures: figures by name.
        doubts: what a reader of the figures has to know.
    """

    file: Path
    kind: str
    conditions: Mapping[str, object]
    measures: Mapping[str, float]
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """One figure before and after."""

    name: str
    before: float
    after: float
    better: Better

    @property
    def relative(self) -> float:
        """The change as a share of `before`; infinite from zero to something."""
        if self.before == self.after:
            return 0.0
        return (self.after - self.before) / self.before if self.before else math.inf

    def verdict(self, tolerance: float) -> str:
        """`worse`, `better` or `same`; a change of exactly the tolerance is none.

        Empty for a figure that is not judged.
        """
        if self.better is None:
            return ""
        if abs(self.relative) <= tolerance + 1e-9:
            return "same"
        return "better" if (self.relative > 0) == (self.better == "higher") else "worse"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `compare`."""
    parser.add_argument("before", type=Path, help="capacity.json, run.json or Locust's _stats.csv")
    parser.add_argument("after", type=Path, help="another one of the same kind")
    parser.add_argument(
        "--tolerance", type=tolerance, default=0.1, help="such as 10%% or 0.1 (default: 10%%)"
    )
    parser.add_argument(
        "--fail-on-worse", action="store_true", help="exit code 1 if any figure got worse"
    )


def compare(given: argparse.Namespace, console: Console) -> int:
    """Print the changes; returns the exit code.

    Raises:
        ComparisonError: if a file cannot be read, or the two are unlike.
    """
    before, after = read(given.before), read(given.after)
    doubts = [f"{each.file} {doubt}" for each in (before, after) for doubt in each.doubts]
    for warning in [*check_alike(before, after), *doubts]:
        console.print(f"Note: {warning}", markup=False)
    table = Table("", "before", "after", "change", "", box=box.SIMPLE, pad_edge=False)
    found: dict[str, list[str]] = {"worse": [], "better": []}
    for change in changes_of(before, after):
        relative = "new" if math.isinf(change.relative) else f"{change.relative:+.1%}"
        verdict = change.verdict(given.tolerance)
        found.setdefault(verdict, []).append(change.name)
        figures = (f"{change.before:,.5g}", f"{change.after:,.5g}", relative)
        table.add_row(change.name, *figures, verdict)
    console.print(table)
    said = [f"{each}: {', '.join(found[each])}" for each in ("worse", "better") if found[each]]
    summary = "; ".join(said) or "nothing has changed"
    console.print(f"By more than {given.tolerance:.3g} of before: {summary}")
    return 1 if found["worse"] and given.fail_on_worse else 0


def read(file: Path) -> Result:
    """The figures of a result file.

    Raises:
        ComparisonError: if it is not there, or is no such file.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ComparisonError(f"{file} cannot be read: {error.strerror}") from error
    if file.suffix == ".csv":
        return _locust(file, content.decode("utf-8-sig", errors="replace"))
    try:
        found = orjson.loads(content)
        reader = {"capacity": _capacity, "run": _run}[found["kind"]]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise ComparisonError(
            f"{file} is neither a capacity.json, a run.json nor Locust's _stats.csv"
        ) from error
    try:
        return reader(file, found)
    except (KeyError, TypeError, ValueError) as error:
        raise ComparisonError(
            f"{file} lacks {error}; was it written by another release?"
        ) from error


def check_alike(before: Result, after: Result) -> list[str]:
    """Warnings about conditions that differ without making the comparison void.

    Raises:
        ComparisonError: if the two measured different things.
    """
    if before.kind != after.kind:
        raise ComparisonError(
            f"{before.file} is of a {before.kind}, {after.file} of a {after.kind}: unlike things"
        )
    pairs = {
        name: (before.conditions.get(name), after.conditions.get(name)) for name in (*SAME, *TOLD)
    }
    differ = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    unlike = [f"{name} {differ[name][0]} and {differ[name][1]}" for name in SAME if name in differ]
    if unlike:
        raise ComparisonError(
            f"unlike things were measured, with {'; '.join(unlike)}; measure one anew"
        )
    return [f"{name} differs: {a} before, {b} after" for name, (a, b) in differ.items()]


def changes_of(before: Result, after: Result) -> list[Change]:
    """One for each figure that both have.

    Of two capacities only the capacities are judged: what else is told belongs to different rates
    and lies near the SLO by construction. It is shown all the same: what holds more at the same p99
    with a worse p50 is worth a look.
    """

    def better(name: str) -> Better:
        if before.kind == "capacity" and name != CAPACITY:
            return None
        return "higher" if name.endswith("requests/s") else "lower"

    return [
        Change(name, value, after.measures[name], better(name))
        for name, value in before.measures.items()
        if name in after.measures
    ]


def _capacity(file: Path, found: Mapping[str, Any]) -> Result:
    if found["capacity_per_s"] is None or found["at_capacity"] is None:
        raise ComparisonError(f"{file} holds no capacity: {found['headline']}")
    if found["end"] != "found":
        raise ComparisonError(f"{file} is of a search that was cut short: {found['end']}")
    _check_right(file, found["trials"])
    doubts = [f"is not to be trusted: {doubt}" for doubt in found["doubts"]]
    if found["at_least"]:
        doubts.append("tells the least that the capacity is, not how much it is")
    if not found["confirmed"]:
        doubts.append("holds a capacity that no long trial confirmed")
    measures = {CAPACITY: float(found["capacity_per_s"]), **_figures(found["at_capacity"])}
    return Result(file, "capacity", found["conditions"], measures, tuple(doubts))


def _run(file: Path, found: Mapping[str, Any]) -> Result:
    trial = found["trial"]
    _check_right(file, [trial])
    conditions = {**found["conditions"], "rate": trial["rate_per_s"]}
    measures = {ANSWERED: float(trial["achieved_per_s"]), **_figures(trial)}
    doubts = tuple(f"is not to be trusted: {doubt}" for doubt in found["doubts"])
    return Result(file, "run", conditions, measures, doubts)


def _check_right(file: Path, trials: Sequence[Mapping[str, Any]]) -> None:
    wrong = next((trial for trial in trials if trial["wrong"] > 0), None)
    if wrong is not None:
        raise ComparisonError(
            f"{file} holds {wrong['wrong']} wrong answers: figures of a server that answers "
            f"wrongly say nothing; the first: {wrong['first_wrong']}"
        )


def _figures(trial: Mapping[str, Any]) -> dict[str, float]:
    shown = {f"p{percent} ms": float(trial[f"p{percent}_ms"]) for percent in (50, 95, 99)}
    return {**shown, "failed share": float(trial["fail_ratio"])}


def _locust(file: Path, text: str) -> Result:
    rows = list(csv.DictReader(text.splitlines()))
    try:
        total = next(row for row in reversed(rows) if row.get("Name") == LOCUST_TOTAL)
        requests = float(total["Request Count"])
        failed = float(total["Failure Count"]) / requests if requests else 1.0
        measures = {
            ANSWERED: float(total["Requests/s"]) * (1 - failed),  # what failed counts there, too
            **{f"p{n} ms": float(total[f"{n}%"]) for n in (50, 95, 99)},
            "failed share": failed,
        }
        sent = sorted({f"{row['Type']} {row['Name']}" for row in rows if row is not total})
    except (StopIteration, KeyError, ValueError, TypeError) as error:
        raise ComparisonError(
            f"{file} is no _stats.csv of Locust with a row {LOCUST_TOTAL!r} of figures"
        ) from error
    return Result(file, "locust", {"requests": ", ".join(sent)}, measures)
