"""What one trial says: quantiles, failures, hints, and whether the generator can be trusted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from loadtests.openloop.sender import Cost, Kind, Outcomes
from models.tensors import Array

Purpose = Literal["warm-up", "probe", "search", "confirm", "run", "load"]
WINDOWS = 5
WINDOW_REQUESTS = 200  # at least, or the 99th percentile of a window is its maximum
LAG_SHARE = 0.1  # of the SLO: a lag above it is a part of the measured latency that matters
BUSY_CPU = 0.9  # of a core: a generator above it has no time left to be punctual
LEAST_HINT_MS = 20.0  # below it the network alone varies as much
HINT_FACTOR = 2.0


@dataclass(frozen=True, slots=True)
class Gates:
    """What a server has to keep to.

    Attributes:
        slo_ms: highest 99th percentile of the latency.
        fail_ratio: highest share of failed requests.
        in_time: instead of both, the least share of right answers within `slo_ms`.
    """

    slo_ms: float
    fail_ratio: float
    in_time: float | None = None


@dataclass(frozen=True, slots=True)
class Hints:
    """How `retry_after_ms` compares with the truth, where either is above 20 ms.

    The truth is the time from the refusal until all was answered that had been sent before and was
    accepted: what was accepted later does not count, however long it kept the server busy.

    Attributes:
        judged: how many there are.
        within: how many are within a factor 2.
        median_ratio: of hint over truth; None without any.
    """

    judged: int
    within: int
    median_ratio: float | None


@dataclass(frozen=True, slots=True)
class Trial:
    """One constant-rate trial, in figures.

    Attributes:
        kind: what it was for.
        rate_per_s: that was asked for.
        seconds: measured.
        slo_ms: latency up to which an answer is in time.
        requests: that arrived within the measured time.
        offered_per_s: `requests` over `seconds`.
        achieved_per_s: right answers that came within the measured time, over `seconds`.
        in_time: right answers within the SLO.
        late: right answers after it, 408, 504, and no answer at all.
        refused: 429, and 503 where it does not say another reason.
        errors: other statuses from 500, and broken connections.
        wrong: answers with a wrong content, also those of the settling time.
        p50_ms, p95_ms, p99_ms, max_ms: latency of all that were served or left waiting.
        typical_p99_ms: median of the 99th percentiles of `windows` parts of the measured time; a
            hiccup of the machine does not move it, an overload does.
        unlagged_p99_ms: the same, counted from the moment that the generator took requests up.
        refused_p99_ms: latency of refusals; None without any.
        windows: how many parts.
        failures: requests that failed, by reason.
        first_wrong: what was wrong with the first wrong answer; empty if none.
        lag_p99_ms: of the generator: taken up minus intended arrival.
        hints: of refusals.
        cost: of the generator.
    """

    kind: Purpose
    rate_per_s: float
    seconds: float
    slo_ms: float
    requests: int
    offered_per_s: float
    achieved_per_s: float
    in_time: int
    late: int
    refused: int
    errors: int
    wrong: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float
    typical_p99_ms: float
    unlagged_p99_ms: float
    refused_p99_ms: float | None
    windows: int
    failures: dict[str, int]
    first_wrong: str
    lag_p99_ms: float
    hints: Hints
    cost: Cost

    @property
    def goodput_per_s(self) -> float:
        """Requests that were answered rightly and within the SLO."""
        return self.in_time / self.seconds

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
        if gates.in_time is not None:
            return self.in_time >= gates.in_time * self.requests > 0
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

    def doubts(self) -> list[str]:
        """Why the figures are not to be trusted, and what to do; empty if they are."""
        found = []
        if self.lag_p99_ms > LAG_SHARE * self.slo_ms:
            found.append(
                f"the generator sent late: 1 % of the requests by more than {self.lag_p99_ms:.1f} "
                f"ms, which is above a tenth of the SLO; give it a core of its own or a machine "
                "of its own"
            )
        if self.cost.cpu > BUSY_CPU:
            found.append(
                f"the generator used {self.cost.cpu:.0%} of its core; lower the rate, or give it "
                "a core of its own or a faster machine"
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
    kind: Purpose,
    rate_per_s: float,
    measured_s: tuple[float, float],
    slo_ms: float,
    outcomes: Outcomes,
    cost: Cost,
) -> Trial:
    """The figures of a trial.

    Args:
        kind: what it was for.
        rate_per_s: that was asked for.
        measured_s: the settling time, and the measured time after it.
        slo_ms: what goodput is counted by.
        outcomes: of all requests.
        cost: of the generator.
    """
    settle_s, seconds = measured_s
    due_s, done_s = outcomes.due_s - settle_s, outcomes.done_s - settle_s
    counted = due_s >= 0
    n = int(counted.sum())
    of = {each: counted & (outcomes.kind == each) for each in Kind}
    latency_ms, lag_ms = (done_s - due_s) * 1000, np.nan_to_num(outcomes.lag_s) * 1000
    in_time = of[Kind.RIGHT] & (latency_ms <= slo_ms)
    taken = of[Kind.RIGHT] | of[Kind.WRONG] | of[Kind.GIVEN_UP]
    parts = max(1, min(WINDOWS, n // WINDOW_REQUESTS))
    part_of = np.minimum((due_s / seconds * parts).astype(int), parts - 1)
    p50, p95, p99, highest = quantiles(latency_ms[taken], (50, 95, 99, 100))
    failed = np.flatnonzero(of[Kind.GIVEN_UP] | of[Kind.REFUSED] | of[Kind.ERROR])
    wrong = np.flatnonzero(outcomes.kind == Kind.WRONG)
    refused_ms = latency_ms[of[Kind.REFUSED]]
    served = (outcomes.kind == Kind.RIGHT) & (done_s >= 0) & (done_s < seconds)
    return Trial(
        kind=kind,
        rate_per_s=rate_per_s,
        seconds=seconds,
        slo_ms=slo_ms,
        requests=n,
        offered_per_s=n / seconds,
        achieved_per_s=int(served.sum()) / seconds,
        in_time=int(in_time.sum()),
        late=int((of[Kind.RIGHT] & ~in_time).sum() + of[Kind.GIVEN_UP].sum()),
        refused=len(refused_ms),
        errors=int(of[Kind.ERROR].sum()),
        wrong=len(wrong),
        p50_ms=p50,
        p95_ms=p95,
        p99_ms=p99,
        max_ms=highest,
        typical_p99_ms=_typical_p99(latency_ms[taken], part_of[taken]),
        unlagged_p99_ms=_typical_p99((latency_ms - lag_ms)[taken], part_of[taken]),
        refused_p99_ms=quantiles(refused_ms, (99,))[0] if len(refused_ms) else None,
        windows=parts,
        failures=dict(Counter(outcomes.reason[at] for at in failed.tolist())),
        first_wrong=outcomes.reason[int(wrong[0])] if len(wrong) else "",
        lag_p99_ms=quantiles(lag_ms[counted], (99,))[0],
        hints=_hints(outcomes, np.flatnonzero(counted & ~np.isnan(outcomes.told_ms))),
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


def _typical_p99(values: Array, part_of: Array) -> float:
    """The median of the 99th percentiles of the parts; `part_of` has the part of each value."""
    each = [quantiles(values[part_of == part], (99,)) for part in np.unique(part_of)]
    return float(np.median(each)) if each else 0.0


def _hints(outcomes: Outcomes, at: Array) -> Hints:
    accepted = np.isin(outcomes.kind, (Kind.RIGHT, Kind.WRONG, Kind.GIVEN_UP))
    last_s = np.maximum.accumulate(np.where(accepted, outcomes.done_s, -np.inf))
    told_ms = outcomes.told_ms[at]
    true_ms = np.maximum(0.0, last_s[at] - outcomes.done_s[at]) * 1000
    judged = np.maximum(told_ms, true_ms) > LEAST_HINT_MS
    if not judged.any():
        return Hints(0, 0, None)
    with np.errstate(divide="ignore"):
        ratios = told_ms[judged] / true_ms[judged]
    within = (ratios >= 1 / HINT_FACTOR) & (ratios <= HINT_FACTOR)
    return Hints(len(ratios), int(within.sum()), float(np.median(ratios)))
