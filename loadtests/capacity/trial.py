"""What one trial says: quantiles, failures, and whether the generator itself can be trusted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from models.tensors import Array

Kind = Literal["warm-up", "probe", "search", "confirm", "run"]
WINDOWS = 5
WINDOW_REQUESTS = 200  # at least, or the 99th percentile of a window is its maximum
LAG_SHARE = 0.1  # of the SLO: a lag above it is a part of the measured latency that matters
BUSY_CPU = 0.9  # of a core: a generator above it has no time left to be punctual


@dataclass(frozen=True, slots=True)
class Gates:
    """What a server has to keep to.

    Attributes:
        slo_ms: highest 99th percentile of the latency.
        fail_ratio: highest share of failed requests.
    """

    slo_ms: float
    fail_ratio: float


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The measured requests of a trial, one entry each, in order of their arrival.

    Attributes:
        latency_s: from the intended arrival to the end; shape (n,).
        due_s: intended arrivals from the start of the measured time; shape (n,).
        lag_s: how late the generator took it up; shape (n,), NaN where it never did.
        failures: reasons of the requests that failed, by index; their latencies are not counted
            where the server refused at once, and are where it left the caller waiting.
        refused: indices of those that were answered, but not served.
        wrong: what was wrong with answers that claim to be good, by index; below 0 for requests
            that arrived before the measured time.
        served: right answers that came within the measured time, whenever they were asked for.
    """

    latency_s: Array
    due_s: Array
    lag_s: Array
    failures: dict[int, str]
    refused: frozenset[int]
    wrong: dict[int, str]
    served: int


@dataclass(frozen=True, slots=True)
class Cost:
    """What the generator needed.

    Attributes:
        cpu: share of one core; of the busiest process where there are several.
        connections: opened.
        starved: requests that found the pool of connections used up.
        unopened: measured requests that failed because it could open no connection for them.
    """

    cpu: float
    connections: int
    starved: int
    unopened: int = 0


@dataclass(frozen=True, slots=True)
class Trial:
    """One constant-rate trial, in figures.

    Attributes:
        kind: what it was for.
        rate_per_s: that was asked for.
        seconds: measured.
        requests: that arrived within them.
        offered_per_s: `requests` over `seconds`.
        achieved_per_s: right answers that came within the measured time, over `seconds`.
        goodput_per_s: requests that were answered rightly and within the SLO, over `seconds`.
        p50_ms, p95_ms, p99_ms, max_ms: latency of all that were served or left waiting.
        typical_p50_ms, typical_p95_ms, typical_p99_ms: medians of the percentiles of `windows`
            parts of the measured time; a hiccup of the machine moves none, an overload does.
        unlagged_p99_ms: the same, counted from the moment that the generator took requests up.
        windows: how many parts.
        failures: requests that failed, by reason.
        wrong: answers with a wrong content.
        first_wrong: what was wrong with the first of them; empty if none.
        lag_p99_ms: of the generator: taken up minus intended arrival.
        cost: of the generator.
    """

    kind: Kind
    rate_per_s: float
    seconds: float
    requests: int
    offered_per_s: float
    achieved_per_s: float
    goodput_per_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float
    typical_p50_ms: float
    typical_p95_ms: float
    typical_p99_ms: float
    unlagged_p99_ms: float
    windows: int
    failures: dict[str, int]
    wrong: int
    first_wrong: str
    lag_p99_ms: float
    cost: Cost

    @property
    def failed(self) -> int:
        """Requests that failed, for whatever reason."""
        return sum(self.failures.values())

    @property
    def fail_ratio(self) -> float:
        """Share of the requests that failed."""
        return self.failed / self.requests if self.requests else 0.0

    def meets(self, gates: Gates) -> bool:
        """Whether the server kept to the gates; a trial without requests proves nothing."""
        return (
            self.requests > 0
            and self.typical_p99_ms <= gates.slo_ms
            and self.fail_ratio <= gates.fail_ratio
        )

    def generator_bound(self, gates: Gates) -> bool:
        """Whether the gates were missed because of the generator, or may have been.

        It is so where the generator had no time left or could open no connection, or where
        latencies that are counted from the moment of sending would have been short enough.
        """
        of_the_server = self.failed - self.cost.unopened
        if self.meets(gates) or of_the_server > gates.fail_ratio * self.requests:
            return False
        if self.cost.unopened:
            return True
        return self.cost.cpu > BUSY_CPU or self.unlagged_p99_ms <= gates.slo_ms

    def doubts(self, gates: Gates) -> list[str]:
        """Why the figures are not to be trusted, and what to do; empty if they are."""
        found = []
        if self.lag_p99_ms > LAG_SHARE * gates.slo_ms:
            found.append(
                f"the generator sent late: 1 % of the requests by more than {self.lag_p99_ms:.1f} "
                f"ms, which is above a tenth of the SLO; give it a core of its own or a machine "
                "of its own"
            )
        if self.cost.cpu > BUSY_CPU:
            found.append(
                f"the generator used {self.cost.cpu:.0%} of its core; share the rate between "
                "more of them with --processes"
            )
        if self.cost.unopened:
            found.append(
                f"{self.cost.unopened} requests failed because the generator could open no "
                "connection for them; allow it more open files (ulimit -n) or lower --connections"
            )
        if self.cost.starved:
            found.append(
                f"{self.cost.starved} requests waited for a connection, as all were in use; "
                "allow more with --connections"
            )
        return found


def summarize(
    kind: Kind, rate_per_s: float, seconds: float, outcomes: Outcomes, cost: Cost, slo_ms: float
) -> Trial:
    """The figures of a trial.

    Args:
        kind: what it was for.
        rate_per_s: that was asked for.
        seconds: measured.
        outcomes: of the requests that arrived in this time.
        cost: of the generator.
        slo_ms: what goodput is counted by.
    """
    n = len(outcomes.due_s)
    counted = np.ones(n, dtype=bool)
    counted[list(outcomes.refused)] = False
    latency_ms = outcomes.latency_s * 1000
    lag_ms = np.nan_to_num(outcomes.lag_s * 1000)
    good = np.ones(n, dtype=bool)
    good[[*outcomes.failures, *(index for index in outcomes.wrong if index >= 0)]] = False
    parts = max(1, min(WINDOWS, n // WINDOW_REQUESTS))
    part_of = np.minimum((outcomes.due_s / seconds * parts).astype(int), parts - 1)
    p50, p95, p99, highest = quantiles(latency_ms[counted], (50, 95, 99, 100))
    typical50, typical95, typical99 = typical(latency_ms[counted], part_of[counted], (50, 95, 99))
    return Trial(
        kind=kind,
        rate_per_s=rate_per_s,
        seconds=seconds,
        requests=n,
        offered_per_s=n / seconds,
        achieved_per_s=outcomes.served / seconds,
        goodput_per_s=int((good & (latency_ms <= slo_ms)).sum()) / seconds,
        p50_ms=p50,
        p95_ms=p95,
        p99_ms=p99,
        max_ms=highest,
        typical_p50_ms=typical50,
        typical_p95_ms=typical95,
        typical_p99_ms=typical99,
        unlagged_p99_ms=typical((latency_ms - lag_ms)[counted], part_of[counted], (99,))[0],
        windows=parts,
        failures=dict(Counter(outcomes.failures.values())),
        wrong=len(outcomes.wrong),
        first_wrong=outcomes.wrong[min(outcomes.wrong)] if outcomes.wrong else "",
        lag_p99_ms=quantiles(lag_ms, (99,))[0],
        cost=cost,
    )


def quantiles(values: Array, percents: Sequence[float]) -> list[float]:
    """Nearest-rank percentiles: the smallest value that at least `percent` do not exceed.

    Args:
        values: in any order, shape (n,); of none, all percentiles are 0.
        percents: above 0, up to 100.
    """
    if not len(values):
        return [0.0 for _ in percents]
    ascending = np.sort(values)
    return [float(ascending[math.ceil(len(values) * each / 100) - 1]) for each in percents]


def typical(values: Array, part_of: Array, percents: Sequence[float]) -> list[float]:
    """Percentiles of each part; of each percentile, the median over the parts.

    Args:
        values: shape (n,); of none, all percentiles are 0.
        part_of: the number of the part that each value belongs to; shape (n,).
        percents: above 0, up to 100.
    """
    if not len(values):
        return [0.0 for _ in percents]
    each = [quantiles(values[part_of == part], percents) for part in np.unique(part_of)]
    return [float(median) for median in np.median(np.array(each), axis=0)]
