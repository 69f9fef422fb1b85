"""What this project demands of itself under overload, and whether it is met."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from loadtests.bench.workloads import OURS
from loadtests.overload.hints import NO_HINTS, Hints
from loadtests.overload.loads import Load
from loadtests.overload.measuring import Measured

Verdict = Literal["met", "missed", "not judged", "not measured"]
MOST_STALLED = 0.005  # of the time: above it a tail says more about the machine than of the server
HINTS_WITHIN = 0.95  # of the hints: a stall of the machine spoils a few that were right


@dataclass(frozen=True, slots=True)
class Judged:
    """A line of the acceptance.

    Attributes:
        what: the figure, for people.
        wanted: its bound, for people.
        measured: for people; empty if it was not.
        verdict: whether it is met.
        doubt: why a miss proves nothing, or nothing was judged.
    """

    case: str
    what: str
    wanted: str
    measured: str
    verdict: Verdict
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class _Figure:
    """What was measured of a demand; `loads` are those that could cast doubt on it."""

    measured: str
    is_met: bool
    loads: Sequence[Load]


@dataclass(frozen=True, slots=True)
class _Demand:
    case: str
    what: str
    wanted: str
    figure: Callable[[Sequence[Load]], _Figure | None]


def judge(results: Sequence[Measured]) -> list[Judged]:
    """Every demand on ours, in the order of the table."""
    ours = {each.case: each.loads for each in results if each.server == OURS}
    return [_judged(demand, ours.get(demand.case, ())) for demand in _demands()]


def _judged(demand: _Demand, loads: Sequence[Load]) -> Judged:
    figure = demand.figure(loads) if loads else None
    if figure is None:
        return Judged(demand.case, demand.what, demand.wanted, "", "not measured")
    offered = next((each.doubt for each in figure.loads if each.doubt), None)
    stalled = max((each.stalled for each in figure.loads), default=0.0)
    doubt = offered or ""
    if not doubt and stalled > MOST_STALLED:
        doubt = f"the server's core stood still for {stalled:.1%} of the time without any load"
    verdict: Verdict = "met" if figure.is_met else "missed"
    if doubt and (offered or not figure.is_met):
        verdict = "not judged"
    else:
        doubt = ""
    return Judged(demand.case, demand.what, demand.wanted, figure.measured, verdict, doubt)


def _demands() -> tuple[_Demand, ...]:
    late = "p99 of accepted answers, worst load"
    return (
        _Demand("linear", "goodput at 4x over the peak", ">= 0.9", _over_peak(4, 0.9)),
        _Demand("linear", late, "<= deadline", _worst_p99),
        _Demand("linear", "p99 of refusals, worst load", "< 10 ms", _worst_refusal),
        _Demand("linear", "retry_after_ms within a factor 2", ">= 95 %", _hints_hold),
        _Demand("linear", "refused at 0.7x", "<= 0.1 %", _refused_below_capacity),
        _Demand("linear", "wrong answers", "0", _none_wrong),
        _Demand("digits", "goodput at 2x over the peak", ">= 0.5", _over_peak(2, 0.5)),
        _Demand("digits", "wrong answers", "0", _none_wrong),
    )


def _over_peak(times: float, least: float) -> Callable[[Sequence[Load]], _Figure | None]:
    def figure(loads: Sequence[Load]) -> _Figure | None:
        at = [each for each in loads if each.offer.times == times]
        peak_per_s = max(each.goodput_per_s for each in loads)
        if not at or not peak_per_s:
            return None
        share = at[0].goodput_per_s / peak_per_s
        return _Figure(f"{share:.2f}", share >= least, at)

    return figure


def _worst_p99(loads: Sequence[Load]) -> _Figure | None:
    taken = [(each.p99_ms, each) for each in loads if each.p99_ms is not None]
    if not taken:
        return None
    p99_ms, worst = max(taken, key=lambda pair: pair[0])
    return _Figure(f"{p99_ms:.1f} ms", p99_ms <= worst.offer.deadline_s * 1000, [worst])


def _worst_refusal(loads: Sequence[Load]) -> _Figure | None:
    refused = [(each.p99_refused_ms, each) for each in loads if each.p99_refused_ms is not None]
    if not refused:
        return None
    p99_ms, worst = max(refused, key=lambda pair: pair[0])
    return _Figure(f"{p99_ms:.1f} ms", p99_ms < 10, [worst])


def _hints_hold(loads: Sequence[Load]) -> _Figure | None:
    hints: Hints = sum((each.hints for each in loads), NO_HINTS)
    share, median = hints.share_within, hints.median_ratio
    if share is None:
        return None
    told = f"{share:.1%} of {hints.judged}, median {median:.2f}"
    return _Figure(told, share >= HINTS_WITHIN, [each for each in loads if each.hints.judged])


def _refused_below_capacity(loads: Sequence[Load]) -> _Figure | None:
    at = [each for each in loads if each.offer.times == 0.7]
    if not at:
        return None
    share = at[0].refused_share
    told = f"{share:.2%} ({at[0].refused} of {at[0].requests})"
    return _Figure(told, share <= 0.001, at)


def _none_wrong(loads: Sequence[Load]) -> _Figure | None:
    wrong, judged = sum(each.wrong for each in loads), sum(each.judged for each in loads)
    return _Figure(f"{wrong} of {judged:,}", wrong == 0, []) if judged else None
