"""The search against a simulated server whose capacity is known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from loadtests.capacity.search import CapacityEstimate, Lengths, Search, TrialStep
from loadtests.openloop.arrivals import schedule
from loadtests.openloop.trial import TrialResult, summarize
from tests.unit.loadtests.openloop.trials import GATES, IDLE, outcomes

OVERHEAD_S = 0.8  # drawing requests and the rest, per trial


@dataclass
class OneQueue:
    """Poisson arrivals, one server, a constant service time that differs from trial to trial.

    Attributes:
        service_s: on average.
        noise: how far it differs, as a share.
        hiccups: share of the trials in which everything stands still for 100 ms.
    """

    service_s: float
    noise: float = 0.0
    hiccups: float = 0.0
    seed: int = 0

    def trial(self, step: TrialStep, settle_s: float) -> TrialResult:
        """Lindley's recursion: what is left to do when a request arrives."""
        self.seed += 1
        rng = np.random.default_rng(self.seed)
        whole_s = settle_s + step.seconds
        due = schedule("poisson", step.rate_per_s, whole_s, self.seed)
        service = np.full(len(due), self.service_s * np.exp(rng.normal(0, self.noise)))
        if len(due) and rng.random() < self.hiccups:
            service[rng.integers(len(due))] += 0.1
        load = np.cumsum(service)
        late = load - due - np.minimum.accumulate(load - service - due)
        counted = due >= settle_s
        results = outcomes(late[counted].tolist(), due_s=(due[counted] - settle_s).tolist())
        return summarize(step.kind, step.rate_per_s, (0, step.seconds), GATES.slo_ms, results, IDLE)

    def capacity(self) -> float:
        """The rate at which a long trial without noise just keeps the SLO."""
        low, high = 0.2 / self.service_s, 1.2 / self.service_s
        quiet = OneQueue(self.service_s)
        while high / low > 1.002:
            middle = (low * high) ** 0.5
            is_met = quiet.trial(TrialStep("run", middle, 60_000 / middle), 0).meets(GATES)
            low, high = (middle, high) if is_met else (low, middle)
        return low


def searched(
    server: OneQueue, budget_s: float = 120
) -> tuple[CapacityEstimate, list[TrialResult], float]:
    lengths = Lengths.within(budget_s)
    search = Search(lengths, start_per_s=100, lowest_per_s=1, highest_per_s=50_000)
    step: TrialStep | None = search.warm_up()
    spent, trials = 0.0, []
    while step is not None:
        trial = server.trial(step, lengths.settle_s)
        took = step.seconds + lengths.settle_s + OVERHEAD_S
        spent += took
        trials.append(trial)
        search.record(step, trial.meets(GATES), trial.achieved_per_s, took)
        step = search.next_step(budget_s - spent)
    return search.answer(), trials, spent


@pytest.mark.parametrize(
    ("capacity", "served_per_s"), [(8000, 300.0), (50, 5.0), (50, 0.0), (3, 1.5)]
)
@pytest.mark.parametrize("budget_s", [20.0, 120.0])
def test_capacity_is_found_despite_collapse_under_overload(
    capacity: int, served_per_s: float, budget_s: float
) -> None:
    """A server far above its capacity may do nothing but reject; the search starts at 100/s."""
    lengths, left_s = Lengths.within(budget_s), budget_s
    search = Search(lengths, start_per_s=100, lowest_per_s=1, highest_per_s=20_000)
    step: TrialStep | None = search.warm_up()
    while step is not None:
        passed = step.rate_per_s <= capacity
        served = step.rate_per_s if passed else served_per_s
        search.record(step, passed, served, lengths.settle_s + step.seconds)
        left_s -= lengths.settle_s + step.seconds
        step = search.next_step(left_s)
    assert search.answer().capacity_per_s == pytest.approx(capacity, rel=0.1)


def test_server_too_slow_at_any_rate_has_no_capacity() -> None:
    answer, trials, _ = searched(OneQueue(service_s=0.080))
    assert answer.capacity_per_s is None
    assert not answer.confirmed
    assert min(trial.rate_per_s for trial in trials) == pytest.approx(1)


def test_search_without_overload_ends_at_the_highest_rate() -> None:
    answer, trials, _ = searched(OneQueue(service_s=1e-7))
    assert answer.capacity_per_s == 50_000
    assert answer.confirmed  # by a long trial at the highest rate, and not only by a probe
    assert trials[-1].kind == "confirm"
    assert max(trial.rate_per_s for trial in trials) == 50_000
