"""Trials and outcomes made by hand, and conditions to report them under."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadtests.capacity.conditions import Conditions
from loadtests.capacity.trial import Cost, Kind, Outcomes, Trial, summarize

IDLE = Cost(cpu=0.1, connections=4, starved=0)


def outcomes(
    latency_s: Sequence[float],
    seconds: float = 1.0,
    lag_s: float = 0.0,
    failures: dict[int, str] | None = None,
    refused: frozenset[int] = frozenset(),
    wrong: dict[int, str] | None = None,
) -> Outcomes:
    """Requests that arrived evenly over the measured time."""
    n = len(latency_s)
    failures = failures or {}
    return Outcomes(
        latency_s=np.array(latency_s, dtype=np.float64),
        due_s=np.arange(n) * seconds / max(n, 1),
        lag_s=np.full(n, lag_s),
        failures=failures,
        refused=refused,
        wrong=wrong or {},
        served=n - len(failures),
    )


def trial(rate: float, p99_ms: float, kind: Kind = "search", cost: Cost = IDLE) -> Trial:
    """A thousand requests, all as late as that, in one second."""
    return summarize(kind, rate, 1.0, outcomes([p99_ms / 1000] * 1000), cost, 50)


def conditions() -> Conditions:
    return Conditions(
        command="python -m loadtests find-capacity",
        date="2026-01-02T03:04:05+00:00",
        machine="a machine, 2 cores",
        load_average=0.1,
        url="http://localhost:8000",
        address="127.0.0.1:8000",
        model="digits",
        version=1,
        precision="float32",
        workload="unique",
        arrivals="poisson",
        slo_ms=50.0,
        fail_ratio=0.001,
        settings={"budget_s": 120.0},
    )
