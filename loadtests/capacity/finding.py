"""Runs the search: trial after trial until the capacity is known or the time is over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from loadtests.capacity.search import CapacityEstimate, Search, TrialStep
from loadtests.openloop.address import Unreachable
from loadtests.openloop.generator import TrialTooLarge
from loadtests.openloop.sender import Cost, Outcomes, TrialPlan
from loadtests.openloop.trial import Gates, TrialResult, summarize

NEAR = 1.35  # times the capacity: failed trials up to this rate bound it
End = Literal["found", "wrong answers", "interrupted", "unreachable", "too large"]
RunTrial = Callable[[TrialPlan], tuple[Outcomes, Cost]]
Measure = Callable[[TrialStep], TrialResult]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search.

    Attributes:
        answer: the capacity and its certainty.
        trials: in the order of execution.
        end: why there was no further trial.
        at_least: the capacity is a lower bound, because the server did not end the search.
        reason: what cut it short, in words; empty if nothing or the user did.
    """

    answer: CapacityEstimate
    trials: tuple[TrialResult, ...]
    end: End
    at_least: bool
    seconds: float
    reason: str = ""

    def at_capacity(self, gates: Gates) -> TrialResult | None:
        """Return the trial that shows the capacity: the last passed one nearest to it."""
        capacity = self.answer.capacity_per_s
        candidates = [t for t in self.trials if t.kind != "warm-up" and t.meets(gates)]
        if capacity is None or not candidates:
            return None
        return min(reversed(candidates), key=lambda trial: abs(trial.rate_per_s - capacity))


def measuring(run_trial: RunTrial, settle_s: float, slo_ms: float, seed: int) -> Measure:
    """Return a function that runs a step's trial, each with other arrivals."""
    count = 0

    def measure(step: TrialStep) -> TrialResult:
        nonlocal count
        count += 1
        plan = TrialPlan(step.rate_per_s, settle_s, step.seconds, seed * 100_003 + count)
        outcomes, cost = run_trial(plan)
        measured_s = (settle_s, step.seconds)
        return summarize(step.kind, step.rate_per_s, measured_s, slo_ms, outcomes, cost)

    return measure


def find(
    search: Search,
    measure: Measure,
    gates: Gates,
    budget_s: float,
    clock: Callable[[], float],
    on_trial: Callable[[TrialResult], None],
) -> SearchResult:
    """Search for the capacity; end early at the first wrong answer and at Ctrl-C.

    A lost server, or a trial that does not fit into memory, also ends the search; earlier
    measurements are kept.
    """
    began = clock()
    trials: list[TrialResult] = []
    end: End = "found"
    reason = ""
    try:
        step: TrialStep | None = search.warm_up()
        while step is not None:
            before = clock()
            trial = measure(step)
            trials.append(trial)
            on_trial(trial)
            if trial.wrong:
                end = "wrong answers"
                break
            passed = trial.meets(gates)
            search.record(step, passed, trial.achieved_per_s, clock() - before)
            step = search.next_step(budget_s - (clock() - began))
    except KeyboardInterrupt:
        end = "interrupted"
    except Unreachable as error:
        end, reason = "unreachable", str(error)
    except TrialTooLarge as error:
        end, reason = "too large", str(error)
    answer = search.answer()
    at_least = _at_least(answer, trials, gates)
    return SearchResult(answer, tuple(trials), end, at_least, clock() - began, reason)


def _at_least(answer: CapacityEstimate, trials: list[TrialResult], gates: Gates) -> bool:
    """Whether the generator or the highest tried rate was the limit, and not the server."""
    capacity = answer.capacity_per_s
    if capacity is None:
        return False
    above = [
        trial
        for trial in trials
        if not trial.meets(gates) and capacity <= trial.rate_per_s <= NEAR * capacity
    ] or [trial for trial in trials if not trial.meets(gates) and trial.rate_per_s > capacity]
    count = sum(trial.generator_bound(gates) for trial in above)
    return 2 * count >= len(above)
