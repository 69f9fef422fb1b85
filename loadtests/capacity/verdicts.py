"""This project's demands on itself under overload, and the verdicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadtests.bench.stalls import doubt_of
from loadtests.bench.workloads import INFINITY, OURS
from loadtests.openloop.trial import Trial
from loadtests.reports import Judged, Verdict

HINTS_WITHIN = 0.95  # of the hints: a stall of the machine spoils a few correct ones


@dataclass(frozen=True, slots=True)
class Load:
    """One load.

    Attributes:
        times: multiple of the capacity.
        cpu_us: of all processes of the server, user and system, per request of any outcome.
        stalled: share of the time before and after in which the server's core did not run a ready
            process, without any load.
        ideal_refused: share that a server without any variance would have rejected, for the same
            arrivals; None: unknown.
    """

    times: float
    trial: Trial
    cpu_us: float = 0.0
    stalled: float = 0.0
    ideal_refused: float | None = None

    @property
    def refused_share(self) -> float:
        """The rejected share of all requests."""
        return self.trial.refused / max(1, self.trial.requests)


@dataclass(frozen=True, slots=True)
class Measured:
    """One server with one model.

    Attributes:
        title: of the model.
        capacity_per_s: most correct, timely answers near the highest sustained rate.
        loads: in ascending order.
        trials: of the search for the capacity.
    """

    case: str
    title: str
    server: str
    capacity_per_s: float
    loads: tuple[Load, ...]
    trials: tuple[Trial, ...] = ()


@dataclass(frozen=True, slots=True)
class _Figure:
    """The measurement for a demand; `loads` are those that could make it doubtful."""

    measured: str
    is_met: bool
    loads: Sequence[Load]


Figure = Callable[[Sequence[Load]], _Figure | None]


def judge(results: Sequence[Measured], *, pinned: bool) -> list[Judged]:
    """Judge every demand on ours, in the order of the table.

    Args:
        results: of the servers.
        pinned: whether server and generator had separate cores; else only answers are judged.
    """
    ours = {each.case: each.loads for each in results if each.server == OURS}
    theirs = [each.loads for each in results if each.server == INFINITY]
    demands = (
        *DEMANDS,
        ("minilm", "p99 at 0.7x over infinity's", "<= 1", _tail_over(theirs[0] if theirs else ())),
    )
    return [_judged(*demand, ours.get(demand[0], ()), pinned=pinned) for demand in demands]


def _judged(
    case: str, what: str, wanted: str, figure: Figure, loads: Sequence[Load], *, pinned: bool
) -> Judged:
    found = figure(loads) if loads else None
    if found is None:
        return Judged(case, what, wanted, "", "not measured")
    doubts = [] if pinned or not found.loads else ["cores not pinned"]
    doubts += [doubt for each in found.loads for doubt in each.trial.doubts()]
    if not found.is_met:
        doubts.append(doubt_of(max((each.stalled for each in found.loads), default=0.0)))
    doubt = next(filter(None, doubts), "")
    verdict: Verdict = "not judged" if doubt else "met" if found.is_met else "missed"
    return Judged(case, what, wanted, found.measured, verdict, doubt)


def _over_peak(times: float, least: float) -> Figure:
    def figure(loads: Sequence[Load]) -> _Figure | None:
        at = [each for each in loads if each.times == times]
        peak_per_s = max(each.trial.goodput_per_s for each in loads)
        if not at or not peak_per_s:
            return None
        share = at[0].trial.goodput_per_s / peak_per_s
        return _Figure(f"{share:.2f}", share >= least, at)

    return figure


def _worst_p99(loads: Sequence[Load]) -> _Figure | None:
    worst = max(loads, key=lambda each: each.trial.p99_ms)
    p99_ms = worst.trial.p99_ms
    return _Figure(f"{p99_ms:.1f} ms", p99_ms <= worst.trial.slo_ms, [worst]) if p99_ms else None


def _worst_refusal(loads: Sequence[Load]) -> _Figure | None:
    refused = [(each.trial.refused_p99_ms or 0.0, each) for each in loads if each.trial.refused]
    if not refused:
        return None
    p99_ms, worst = max(refused, key=lambda pair: pair[0])
    return _Figure(f"{p99_ms:.1f} ms", p99_ms < 10, [worst])


def _hints_hold(loads: Sequence[Load]) -> _Figure | None:
    hinted = [each for each in loads if each.trial.hints.judged]
    judged = sum(each.trial.hints.judged for each in hinted)
    if not judged:
        return None
    share = sum(each.trial.hints.within for each in hinted) / judged
    return _Figure(f"{share:.1%} of {judged}", share >= HINTS_WITHIN, hinted)


def _refused_below_capacity(loads: Sequence[Load]) -> _Figure | None:
    at = [each for each in loads if each.times == 0.7]
    if not at:
        return None
    share, trial = at[0].refused_share, at[0].trial
    late = f", p99 {trial.refused_p99_ms:.1f} ms" if trial.refused_p99_ms is not None else ""
    told = f"{share:.2%} ({trial.refused} of {trial.requests}{late})"
    return _Figure(told, share <= 0.001, at)


def _tail_over(theirs: Sequence[Load]) -> Figure:
    """Compare tails, each at its own capacity."""

    def figure(loads: Sequence[Load]) -> _Figure | None:
        pair = [each for some in (loads, theirs) for each in some if each.times == 0.7]
        if len(pair) < 2 or not pair[1].trial.p99_ms:
            return None
        ratio = pair[0].trial.p99_ms / pair[1].trial.p99_ms
        return _Figure(f"{ratio:.2f}", ratio <= 1, pair)

    return figure


def _none_wrong(loads: Sequence[Load]) -> _Figure | None:
    wrong = sum(each.trial.wrong for each in loads)
    answered = sum(each.trial.requests for each in loads)
    return _Figure(f"{wrong} of {answered:,} requests", wrong == 0, []) if answered else None


DEMANDS: tuple[tuple[str, str, str, Figure], ...] = (
    ("linear", "goodput at 4x over the peak", ">= 0.9", _over_peak(4, 0.9)),
    ("linear", "p99 of accepted answers, worst load", "<= deadline", _worst_p99),
    ("linear", "p99 of refusals, worst load", "< 10 ms", _worst_refusal),
    ("linear", "retry_after_ms within a factor 2", ">= 95 %", _hints_hold),
    ("linear", "refused at 0.7x", "<= 0.1 %", _refused_below_capacity),
    ("linear", "wrong answers", "0", _none_wrong),
    ("digits", "goodput at 2x over the peak", ">= 0.5", _over_peak(2, 0.5)),
    ("digits", "wrong answers", "0", _none_wrong),
    ("minilm", "wrong answers", "0", _none_wrong),
)
