"""Evaluates one trial: quantiles, failures, hints, and the reliability of the generator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from loadtests.openloop.sender import Cost, Kind, Outcomes
from models.tensors import Array

Purpose = Literal["warm-up", "probe", "search", "confirm", "run", "load"]
WINDOWS = 5
WINDOW_REQUESTS = 200  # fewest, or the 99th percentile of a window would be its maximum
LAG_SHARE = 0.1  # of the SLO: a larger lag is a relevant part of the measured latency
BUSY_CPU = 0.9  # of a core: a busier generator cannot be punctual
LEAST_HINT_MS = 20.0  # below, the network alone varies as much
HINT_FACTOR = 2.0


@dataclass(frozen=True, slots=True)
class Gates:
    """The limits for a server.

    Attributes:
        slo_ms: highest 99th percentile of the latency.
        fail_ratio: highest share of failed requests.
        in_time: instead of both, the least share of correct answers within `slo_ms`.
    """

    slo_ms: float
    fail_ratio: float
    in_time: float | None = None


@dataclass(frozen=True, slots=True)
class Hints:
    """Compares `retry_after_ms` with the actual time if either is above 20 ms.

    The actual time is from the rejection until all earlier accepted requests were answered. Later
    ones do not count, however long they kept the server busy.

    Attributes:
        within: number within a factor of 2.
        median_ratio: of hint over actual time; None without any.
    """

    judged: int
    within: int
    median_ratio: float | None


@dataclass(frozen=True, slots=True)
class TrialResult:
    """One constant-rate trial, in figures.

    Attributes:
        seconds: measured time.
        slo_ms: highest latency of an answer in time.
        requests: number within the measured time.
        offered_per_s: `requests` over `seconds`.
        achieved_per_s: correct answers within the measured time, over `seconds`.
        in_time: correct answers within the SLO.
        late: correct answers after it, 408, 504, and missing answers.
        refused: 429, and 503 unless it has another reason.
        errors: other statuses from 500, and broken connections.
        wrong: answers with wrong content, including those of the settling time.
        p50_ms, p95_ms, p99_ms, max_ms: latency of all requests that were served or left waiting.
        typical_p99_ms: median of the 99th percentiles of `windows` parts of the measured time;
            sensitive to an overload, but not to a hiccup of the machine.
        unlagged_p99_ms: the same, counted from when the generator processed the requests.
        refused_p99_ms: latency of rejections; None without any.
        windows: number of parts.
        failures: failed requests, by reason.
        first_wrong: what was wrong with the first wrong answer; empty if none.
        lag_p99_ms: of the generator: processing minus intended arrival.
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
        """Correct answers within the SLO, per second."""
        return self.in_time / self.seconds

    @property
    def failed(self) -> int:
        return sum(self.failures.values())

    @property
    def fail_ratio(self) -> float:
        """The failed share of the requests."""
        return self.failed / self.requests if self.requests else 0.0

    def meets(self, gates: Gates) -> bool:
        """Whether the server met the gates; a trial without requests proves nothing."""
        if gates.in_time is not None:
            return self.in_time >= gates.in_time * self.requests > 0
        return (
            self.requests > 0
            and self.typical_p99_ms <= gates.slo_ms
            and self.fail_ratio <= gates.fail_ratio
        )

    def generator_bound(self, gates: Gates) -> bool:
        """Whether the generator caused, or may have caused, missed gates.

        That is so if the generator had no time left, or if latencies counted from the moment of
        sending would have been short enough.
        """
        if self.meets(gates) or self.failed > gates.fail_ratio * self.requests:
            return False
        return self.cost.cpu > BUSY_CPU or self.unlagged_p99_ms <= gates.slo_ms

    def doubts(self) -> list[str]:
        """Return why the figures are unreliable and what to do; empty if they are reliable."""
        sentences = []
        if self.lag_p99_ms > LAG_SHARE * self.slo_ms:
            sentences.append(
                f"the generator sent late: 1 % of the requests by more than {self.lag_p99_ms:.1f} "
                "ms, which is above a tenth of the SLO; give it a separate core or a separate "
                "machine"
            )
        if self.cost.cpu > BUSY_CPU:
            sentences.append(
                f"the generator used {self.cost.cpu:.0%} of its core; lower the rate, or give it "
                "a separate core or a faster machine"
            )
        if self.cost.starved:
            sentences.append(
                f"{self.cost.starved} requests waited for a connection, because all were in use; "
                "allow more with --connections"
            )
        return sentences


def summarize(
    kind: Purpose,
    rate_per_s: float,
    measured_s: tuple[float, float],
    slo_ms: float,
    outcomes: Outcomes,
    cost: Cost,
) -> TrialResult:
    """Compute the figures of a trial.

    Args:
        kind: its purpose.
        rate_per_s: requested rate.
        measured_s: the settling time, and the measured time after it.
        slo_ms: latency limit of goodput.
        outcomes: of all requests.
        cost: of the generator.
    """
    settle_s, seconds = measured_s
    due_s, done_s = outcomes.due_s - settle_s, outcomes.done_s - settle_s
    is_measured = due_s >= 0
    n = int(is_measured.sum())
    of = {each: is_measured & (outcomes.kind == each) for each in Kind}
    latency_ms, lag_ms = (done_s - due_s) * 1000, np.nan_to_num(outcomes.lag_s) * 1000
    in_time = of[Kind.RIGHT] & (latency_ms <= slo_ms)
    is_answered = of[Kind.RIGHT] | of[Kind.WRONG] | of[Kind.GIVEN_UP]
    parts = max(1, min(WINDOWS, n // WINDOW_REQUESTS))
    part_of = np.minimum((due_s / seconds * parts).astype(int), parts - 1)
    p50, p95, p99, highest = quantiles(latency_ms[is_answered], (50, 95, 99, 100))
    failure_at = np.flatnonzero(of[Kind.GIVEN_UP] | of[Kind.REFUSED] | of[Kind.ERROR])
    wrong_at = np.flatnonzero(outcomes.kind == Kind.WRONG)
    refused_ms = latency_ms[of[Kind.REFUSED]]
    is_served = (outcomes.kind == Kind.RIGHT) & (done_s >= 0) & (done_s < seconds)
    return TrialResult(
        kind=kind,
        rate_per_s=rate_per_s,
        seconds=seconds,
        slo_ms=slo_ms,
        requests=n,
        offered_per_s=n / seconds,
        achieved_per_s=int(is_served.sum()) / seconds,
        in_time=int(in_time.sum()),
        late=int((of[Kind.RIGHT] & ~in_time).sum() + of[Kind.GIVEN_UP].sum()),
        refused=len(refused_ms),
        errors=int(of[Kind.ERROR].sum()),
        wrong=len(wrong_at),
        p50_ms=p50,
        p95_ms=p95,
        p99_ms=p99,
        max_ms=highest,
        typical_p99_ms=_typical_p99(latency_ms[is_answered], part_of[is_answered]),
        unlagged_p99_ms=_typical_p99((latency_ms - lag_ms)[is_answered], part_of[is_answered]),
        refused_p99_ms=quantiles(refused_ms, (99,))[0] if len(refused_ms) else None,
        windows=parts,
        failures=dict(Counter(outcomes.reason[at] for at in failure_at.tolist())),
        first_wrong=outcomes.reason[int(wrong_at[0])] if len(wrong_at) else "",
        lag_p99_ms=quantiles(lag_ms[is_measured], (99,))[0],
        hints=_hints(outcomes, np.flatnonzero(is_measured & ~np.isnan(outcomes.hint_ms))),
        cost=cost,
    )


def quantiles(values: Array, percents: Sequence[float]) -> list[float]:
    """Return nearest-rank percentiles: the smallest value that at least `percent` do not exceed.

    Args:
        values: in any order, shape (n,); if empty, all percentiles are 0.
        percents: above 0, up to 100.
    """
    if not len(values):
        return [0.0 for _ in percents]
    return [float(each) for each in np.percentile(values, percents, method="inverted_cdf")]


def _typical_p99(values: Array, part_of: Array) -> float:
    """Return the median of the parts' 99th percentiles; `part_of` has the part of each value."""
    each = [quantiles(values[part_of == part], (99,)) for part in np.unique(part_of)]
    return float(np.median(each)) if each else 0.0


def _hints(outcomes: Outcomes, at: Array) -> Hints:
    is_accepted = np.isin(outcomes.kind, (Kind.RIGHT, Kind.WRONG, Kind.GIVEN_UP))
    last_s = np.maximum.accumulate(np.where(is_accepted, outcomes.done_s, -np.inf))
    hint_ms = outcomes.hint_ms[at]
    true_ms = np.maximum(0.0, last_s[at] - outcomes.done_s[at]) * 1000
    is_judged = np.maximum(hint_ms, true_ms) > LEAST_HINT_MS
    if not is_judged.any():
        return Hints(0, 0, None)
    with np.errstate(divide="ignore"):
        ratios = hint_ms[is_judged] / true_ms[is_judged]
    within = (ratios >= 1 / HINT_FACTOR) & (ratios <= HINT_FACTOR)
    return Hints(len(ratios), int(within.sum()), float(np.median(ratios)))
