"""Trials and outcomes made by hand, and conditions to report them under."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from loadtests.openloop.sender import Cost, Kind, Outcomes
from loadtests.openloop.trial import Gates, Purpose, TrialResult, summarize

IDLE = Cost(cpu=0.1, connections=4, starved=0)
GATES = Gates(slo_ms=50, fail_ratio=0.001)
OTHERS: Mapping[int, tuple[Kind, str]] = {}


def outcomes(
    latency_s: Sequence[float],
    others: Mapping[int, tuple[Kind, str]] = OTHERS,
    *,
    due_s: Sequence[float] | None = None,
    seconds: float = 1.0,
    lag_s: float = 0.0,
    hint_ms: Mapping[int, float] | None = None,
) -> Outcomes:
    """Requests that arrived evenly over the measured time; `others` are not right, by index."""
    n = len(latency_s)
    due = np.arange(n) * seconds / max(n, 1) if due_s is None else np.array(due_s)
    hints = np.full(n, np.nan)
    for at, hint in (hint_ms or {}).items():
        hints[at] = hint
    return Outcomes(
        due_s=due,
        done_s=due + np.array(latency_s),
        lag_s=np.full(n, lag_s),
        kind=np.array([others.get(at, (Kind.RIGHT, ""))[0] for at in range(n)], np.int8),
        hint_ms=hints,
        reason=[others.get(at, (Kind.RIGHT, ""))[1] for at in range(n)],
    )


def summary(
    results: Outcomes, seconds: float = 1.0, slo_ms: float = 50, cost: Cost = IDLE
) -> TrialResult:
    """The trial without a settling time."""
    return summarize("search", len(results.due_s) / seconds, (0.0, seconds), slo_ms, results, cost)


def trial(rate: float, p99_ms: float, kind: Purpose = "search", cost: Cost = IDLE) -> TrialResult:
    """A thousand requests, all as late as that, in one second."""
    results = outcomes([p99_ms / 1000] * 1000)
    return summarize(kind, rate, (0.0, 1.0), 50, results, cost)
