"""Runs the search: trial after trial until the capacity is known or the time is over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from loadtests.capacity.search import Answer, Search, Step
from loadtests.openloop.address import Unreachable
from loadtests.openloop.generator import TrialTooLarge
from loadtests.openloop.sender import Cost, Outcomes, TrialPlan
from loadtests.openloop.trial import Gates, Trial, summarize

NEAR = 1.35  # times the capacity: failed trials up to this rate bound it
End = Literal["found", "wrong answers", "interrupted", "unreachable", "too large"]
RunTrial = Callable[[TrialPlan], tuple[Outcomes, Cost]]
Measure = Callable[[Step], Trial]


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search.

    Attributes:
        answer: the capacity and its certainty.
        trials: in the order of execution.
        end: why there was no further trial.
        at_least: the capacity is a lower bound, because the server did not end the search.
        seconds: duration of the search.
        reason: what cut it short, in words; empty if nothing or the user did.
    """

    answer: Answer
    trials: tuple[Trial, ...]
    end: End
    at_least: bool
    seconds: float
    reason: str = ""

    def at_capacity(self, gates: Gates) -> Trial | None:
        """Return the trial that shows the capacity: the last passed one nearest to it."""
        capacity = self.answer.capacity_per_s
        passed = [t for t in self.trials if t.kind != "warm-up" and t.meets(gates)]
        if capacity is None or not passed:
            return None
        return min(reversed(passed), key=lambda trial: abs(trial.rate_per_s - capacity))


def measuring(run_trial: RunTrial, settle_s: float, slo_ms: float, seed: int) -> Measure:
    """Return a function that runs a step's trial, each with other arrivals."""
    made = 0

    def measure(step: Step) -> Trial:
        nonlocal made
        made += 1
        plan = TrialPlan(step.rate_per_s, settle_s, step.seconds, seed * 100_003 + made)
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
    on_trial: Callable[[Trial], None],
) -> Found:
    """Search for the capacity; end early at the first wrong answer and at Ctrl-C.

    A lost server, or a trial that does not fit into memory, also ends the search; earlier
    measurements are kept.

    Args:
        search: decides the steps.
        measure: runs a trial.
        gates: the limits for a trial.
        budget_s: time for the whole search.
        clock: returns seconds.
        on_trial: called after each trial.
    """
    begun = clock()
    trials: list[Trial] = []
    end: End = "found"
    reason = ""
    try:
        step: Step | None = search.warm_up()
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
            step = search.next_step(budget_s - (clock() - begun))
    except KeyboardInterrupt:
        end = "interrupted"
    except Unreachable as error:
        end, reason = "unreachable", str(error)
    except TrialTooLarge as error:
        end, reason = "too large", str(error)
    answer = search.answer()
    at_least = _at_least(answer, trials, gates)
    return Found(answer, tuple(trials), end, at_least, clock() - begun, reason)


def _at_least(answer: Answer, trials: list[Trial], gates: Gates) -> bool:
    """Whether the generator or the highest tried rate was the limit, and not the server."""
    capacity = answer.capacity_per_s
    if capacity is None:
        return False
    above = [
        trial
        for trial in trials
        if not trial.meets(gates) and capacity <= trial.rate_per_s <= NEAR * capacity
    ] or [trial for trial in trials if not trial.meets(gates) and trial.rate_per_s > capacity]
    blamed = sum(trial.generator_bound(gates) for trial in above)
    return 2 * blamed >= len(above)
