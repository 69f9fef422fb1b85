"""This project's demands on itself: the minimum and the aim of each figure, and the verdicts.

Every figure is a ratio within one round; the median over the rounds decides.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadtests.bench.launch import SHARED_WORKERS, Contestant, title_of
from loadtests.bench.results import Figure, Results, ratios
from loadtests.bench.workloads import (
    BARE,
    BEFORE,
    INFINITY,
    KSERVE,
    LIMIT,
    LITSERVE,
    MLSERVER,
    MOSEC,
    NATIVE,
    PLAIN,
    PLAIN_ENCODER,
    PYTRITON,
)
from loadtests.reports import Judged, Verdict

LEAST_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Demand:
    """One line of the acceptance table.

    Attributes:
        workload: a name in the table.
        other: the server to compare ours with.
        least: the lowest figure that meets it (the highest if `lower` is better).
        aim: the target beyond that.
        figure: requests per second by default.
        what: in words, if it is not "over" the other.
        group: demands of one group are alternatives: one that is met is enough.
    """

    workload: str
    other: str
    least: float
    aim: float | None = None
    figure: Figure = "requests_per_s"
    what: str = ""
    lower: bool = False
    group: str | None = None

    def reached(self, value: float, wanted: float) -> bool:
        """Whether a figure is at least as good as `wanted`."""
        return value <= wanted if self.lower else value >= wanted


FORWARD = "over reading and forward alone"
DEMANDS = (
    Demand("json-32", MOSEC, 1.8, 2.0),
    Demand("json-32", PLAIN, 8.0),
    Demand("json-32", LITSERVE, 15.0),
    Demand("json-32", BARE, 2.5, figure="cpu_us", what="CPU over bare ASGI", lower=True),
    Demand("json-32", BEFORE, 0.55, figure="cpu_us", what="CPU over before", lower=True),
    Demand("json-128", MOSEC, 1.4, 1.6),
    Demand("binary-32", MOSEC, 1.8, 2.0),
    Demand("binary-32", BARE, 0.33),
    Demand("binary-128", MOSEC, 1.2),
    *(Demand("json-64-shared", Contestant(MOSEC, n).key, 1.5, 1.6) for n in SHARED_WORKERS),
    Demand("batch-json", MOSEC, 2.2, 2.5),
    Demand("batch-json", LIMIT, 0.5),
    Demand("zipf", BARE, 0.5, 0.7),
    Demand("one-connection", PLAIN, 0.7, 0.5, "p50_ms", "p50 over plain FastAPI", lower=True),
    Demand("image-binary", MOSEC, 2.0, group="copies"),
    Demand("image-binary", LIMIT, 0.7, what=FORWARD, group="copies"),
    Demand("v2-json-32", MLSERVER, 4.0),
    Demand("v2-json-32", KSERVE, 4.0),
    Demand("v2-binary-32", NATIVE, 0.8),
    Demand("v2-binary-32", PYTRITON, 4.0),
    Demand("v2-batch-binary", PYTRITON, 2.0),
    Demand("v2-grpc-32", PYTRITON, 1.5),
    Demand("text-32", INFINITY, 1.5),
    Demand("text-32", PLAIN_ENCODER, 2.0),
    Demand("text-32-shared", INFINITY, 1.5),
    *(Demand("text-32-shared", Contestant(PLAIN_ENCODER, n).key, 2.0) for n in SHARED_WORKERS),
    Demand("text-zipf-32", INFINITY, 1.5),
    Demand("text-batch", INFINITY, 1.5),
)


def judge(results: Results, conditions: Mapping[str, Any]) -> list[Judged]:
    """Judge every demand, in the order of the table.

    Args:
        results: of the workloads.
        conditions: of the measurement.
    """
    return [
        _judged(demand, results, pinned=conditions["server_core"] is not None) for demand in DEMANDS
    ]


def _judged(demand: Demand, results: Results, *, pinned: bool) -> Judged:
    figures = _figures(demand, results)
    median = statistics.median(figures) if figures else None
    doubt, verdict = "", "not measured"
    if median is not None:
        doubt = _doubt(figures, pinned=pinned)
        verdict = "not judged" if doubt else _verdict(demand, median)
    sign = "<=" if demand.lower else ">="
    return Judged(
        demand.workload,
        demand.what or f"over {title_of(demand.other)}",
        f"{sign} {demand.least:g}" + (f", aim {demand.aim:g}" if demand.aim else ""),
        f"{median:.2f} ({min(figures):.2f}..{max(figures):.2f})" if median is not None else "",
        verdict,  # type: ignore[arg-type]
        doubt,
        demand.group,
    )


def _verdict(demand: Demand, median: float) -> Verdict:
    if demand.aim is not None and demand.reached(median, demand.aim):
        return "aim met"
    return "met" if demand.reached(median, demand.least) else "missed"


def _doubt(figures: Sequence[float], *, pinned: bool) -> str:
    """Say why the numbers prove nothing; empty if they are valid."""
    if len(figures) < LEAST_ROUNDS:
        return f"{len(figures)} of {LEAST_ROUNDS} rounds"
    return "" if pinned else "cores not pinned"


def _figures(demand: Demand, results: Results) -> list[float]:
    """Return a number per round; empty if it was not measured."""
    rounds = results.get(demand.workload, [])
    found = ratios(rounds, demand.other, demand.figure)
    if demand.what == FORWARD:
        # A server that only reads bodies, like the bare answer, and runs forwards would take both
        # times in sum. If one was left out during the run, no round has both.
        bare = ratios(rounds, BARE, "requests_per_s")
        return [a + b for a, b in zip(bare, found, strict=True)] if len(bare) == len(found) else []
    return found
