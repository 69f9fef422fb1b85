"""Loads and measurements made by hand."""

from __future__ import annotations

import dataclasses

from loadtests.capacity.verdicts import Load, Measured
from loadtests.openloop.sender import Cost
from loadtests.openloop.trial import Hints
from tests.unit.loadtests.openloop.trials import trial

FINE = dataclasses.replace(
    trial(10, 90, "load"), slo_ms=100.0, in_time=10, lag_p99_ms=1.0, refused_p99_ms=5.0
)


def load(
    times: float,
    stalled: float = 0.0,
    ideal: float | None = None,
    cpu: float = 0.1,
    **changes: object,
) -> Load:
    made = dataclasses.replace(FINE, cost=Cost(cpu, 4, 0), **changes)  # type: ignore[arg-type]
    return Load(times, made, stalled=stalled, ideal_refused=ideal)


def measured(case: str, *loads: Load, server: str = "torchlane") -> Measured:
    return Measured(case, f"the model {case}", server, 100.0, loads)


def hints(judged: int, within: int) -> Hints:
    return Hints(judged, within, 1.02)
