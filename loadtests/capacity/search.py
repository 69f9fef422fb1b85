"""Decides where to measure next, and when the capacity is known: a search that tolerates noise.

Every trial is an uncertain yes or no, and a yes gets less likely with the rate. So the search has a
probability for every possible capacity, updates it by each outcome (probabilistic bisection:
Horstein 1963, Waeber, Frazier and Henderson 2013) and measures where it learns most: in the middle.
One bad trial moves the estimate, but never excludes the correct answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from loadtests.openloop.trial import Purpose
from models.tensors import Array

STEP = 0.005  # of the grid of capacities, in natural logarithm: half a percent
NOISE = 0.04  # difference between the capacities of two trials, about 4 %
LAPSE = 0.03  # share of outcomes unrelated to the rate, for example by a neighbour's hiccup
PROBE_LAPSE = 0.15  # the same for the short probes
GROWTH = 4.0  # from probe to probe
NARROW = 1.07  # 80 % of the probability within 7 %: a further trial would add little
OVERLOADED = 0.9  # if at most this share of the rate is served, the server cannot sustain it
HINT_ABOVE = 0.2  # a capacity much above the served rate under overload is unlikely,
HINT_BELOW = 0.8  # one below it is not: a tight SLO is missed before the server is full
CAUTION = 0.97  # the answer: 3 % below the middle, a rate that is usually sustained
CONFIRMATIONS = 4
TIMES_TWO = 2.0  # a confirmation is twice as long as a trial


@dataclass(frozen=True, slots=True)
class Lengths:
    """Durations in seconds.

    Attributes:
        probe_s: measured time of a probe.
        trial_s: measured time of a trial.
        settle_s: load before each measured time.
        longest_s: most measured time of a probe or trial, however few its requests.
    """

    probe_s: float
    trial_s: float
    settle_s: float
    longest_s: float

    @classmethod
    def within(cls, budget_s: float) -> Lengths:
        """Return lengths with which about fifteen trials fit into the budget."""
        trial_s = min(max(budget_s / 24, 0.8), 20.0)
        return cls(0.4 * trial_s, trial_s, min(0.2 * trial_s, 1.0), 3 * trial_s)


@dataclass(frozen=True, slots=True)
class TrialStep:
    """The next trial."""

    kind: Purpose
    rate_per_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class CapacityEstimate:
    """The result of a search.

    Attributes:
        capacity_per_s: the answer; None if even the lowest rate was too high.
        low_per_s, high_per_s: the capacity is between them with a probability of 80 %.
        confirmed: whether a long trial at that rate met the gates.
    """

    capacity_per_s: float | None
    low_per_s: float
    high_per_s: float
    confirmed: bool


class Search:
    """Call `next_step`, measure and call `record`, until there is no next step.

    Args:
        lengths: of the trials.
        start_per_s: the first rate, if it is between the other two.
        lowest_per_s: a server that cannot sustain this rate has no capacity.
        highest_per_s: the highest rate to try.
    """

    def __init__(
        self, lengths: Lengths, start_per_s: float, lowest_per_s: float, highest_per_s: float
    ) -> None:
        self._lengths = lengths
        self._lowest, self._highest = math.log(lowest_per_s), math.log(highest_per_s)
        self._highest_per_s = highest_per_s
        self._start = min(max(start_per_s, lowest_per_s), highest_per_s)
        self._grid = np.arange(self._lowest - 0.2, self._highest + 0.2, STEP)
        self._log_weight = np.zeros(len(self._grid))
        self._passed_rates: list[float] = []
        self._failed_rates: list[float] = []
        self._served_hints: list[float] = []
        self._repeat_at_per_s: float | None = None
        self._stretch = 1.0  # time spent over time loaded
        self._confirming = 0
        self._confirmed_per_s: float | None = None

    def warm_up(self) -> TrialStep:
        """Return the first step, which decides nothing but opens connections and fills caches."""
        return self._step("warm-up", self._start, self._lengths.probe_s, 0)

    def next_step(self, left_s: float) -> TrialStep | None:
        """Return the next measurement.

        Args:
            left_s: remaining time of the whole search.

        Returns:
            the trial; None: the search is over.
        """
        if self._confirmed_per_s is not None or self._hopeless():
            return None
        if not (self._passed_rates and self._failed_rates):
            return self._probe(left_s)
        settle_s, trial_s = self._lengths.settle_s, self._lengths.trial_s
        cost_s = self._stretch * (settle_s + trial_s)
        confirmation_s = self._stretch * (settle_s + TIMES_TWO * trial_s)
        if not self._confirming and not self._narrow() and left_s > cost_s + 2 * confirmation_s:
            return self._step("search", self._quantile(0.5), self._lengths.trial_s, 1000)
        # at least one confirmation, even after the time is over
        if self._confirming and (self._confirming == CONFIRMATIONS or left_s < confirmation_s):
            return None
        return self._confirmation(self._cautious())

    def record(self, step: TrialStep, passed: bool, served_per_s: float, spent_s: float) -> None:
        """Learn from a trial.

        Args:
            step: the measured step.
            passed: whether the gates were met.
            served_per_s: correct answers per second; under overload, usually close to the capacity.
            spent_s: the total time of the step, including for example drawing the requests.
        """
        if step.kind == "warm-up":
            return
        self._stretch = max(1.0, spent_s / (self._lengths.settle_s + step.seconds))
        if step.kind == "probe" and not passed:
            doubtful = served_per_s > OVERLOADED * step.rate_per_s
            if doubtful and self._repeat_at_per_s != step.rate_per_s:
                self._repeat_at_per_s = step.rate_per_s  # it may have been a hiccup: repeat it
                return
        (self._passed_rates if passed else self._failed_rates).append(step.rate_per_s)
        lapse = PROBE_LAPSE if step.kind == "probe" else LAPSE
        distance = (self._grid - math.log(step.rate_per_s)) / NOISE
        keeps = lapse + (1 - 2 * lapse) * _normal_cdf(distance)
        self._log_weight += np.log(keeps if passed else 1 - keeps)
        if step.kind == "probe" and not passed:
            self._served_hints.append(served_per_s)
        if step.kind == "confirm":
            self._confirming += 1
            if passed:
                self._confirmed_per_s = step.rate_per_s

    def answer(self) -> CapacityEstimate:
        low, high = self._quantile(0.1), self._quantile(0.9)
        if not self._passed_rates:
            return CapacityEstimate(None, low, high, confirmed=False)
        capacity = self._confirmed_per_s or min(self._cautious(), self._highest_per_s)
        if not self._failed_rates:  # no rate was too high: the only knowledge is the sustained rate
            capacity = max(self._passed_rates)
        return CapacityEstimate(capacity, low, high, self._confirmed_per_s is not None)

    def _probe(self, left_s: float) -> TrialStep | None:
        """Grow the rate until it is too high, or shrink it until it is not."""
        has_begun = self._passed_rates or self._failed_rates or self._repeat_at_per_s
        if self._repeat_at_per_s and self._repeat_at_per_s not in [
            *self._passed_rates,
            *self._failed_rates,
        ]:
            rate = self._repeat_at_per_s
        elif self._failed_rates:
            rate = max(min(self._failed_rates) / GROWTH, math.exp(self._lowest))
        elif self._passed_rates:
            if max(self._passed_rates) >= self._highest_per_s:
                return self._confirmation(self._highest_per_s)
            rate = min(max(self._passed_rates) * GROWTH, self._highest_per_s)
        else:
            rate = self._start
        if has_begun and left_s < self._stretch * (self._lengths.settle_s + self._lengths.probe_s):
            return None
        return self._step("probe", rate, self._lengths.probe_s, 30)

    def _confirmation(self, rate: float) -> TrialStep:
        return self._step("confirm", rate, TIMES_TWO * self._lengths.trial_s, 1000)

    def _step(self, kind: Purpose, rate: float, seconds: float, requests: int) -> TrialStep:
        """Return a trial that is long enough for this number of requests, within the limit."""
        rate = min(rate, self._highest_per_s)  # the grid extends a little beyond it
        seconds = min(max(seconds, requests / rate), max(self._lengths.longest_s, seconds))
        return TrialStep(kind, rate, seconds)

    def _hopeless(self) -> bool:
        """Whether even the lowest rate was too high, twice."""
        lowest = math.exp(self._lowest) * 1.001
        return sum(rate <= lowest for rate in self._failed_rates) >= 2 and not self._passed_rates

    def _cautious(self) -> float:
        return CAUTION * self._quantile(0.5)

    def _narrow(self) -> bool:
        return self._quantile(0.9) / self._quantile(0.1) < NARROW

    def _quantile(self, share: float) -> float:
        """Return the rate below which the capacity is with this probability."""
        log_weight = self._log_weight.copy()
        for served_per_s in self._served_hints:
            # a server that sheds load may serve less than its known capacity: ignore that
            if served_per_s > max(self._passed_rates, default=0.0):
                over = self._grid - math.log(served_per_s)
                log_weight -= np.where(over > 0, over / HINT_ABOVE, -over / HINT_BELOW)
        weight = np.exp(log_weight - log_weight.max())
        below = np.cumsum(weight) / weight.sum()
        return math.exp(float(self._grid[int(np.searchsorted(below, share))]))


def _normal_cdf(values: Array) -> Array:
    return np.interp(values, _TABLE_AT, _TABLE)


# exact enough for a grid, and a hundred times faster than a call per value
_TABLE_AT = np.linspace(-8, 8, 1601)
_TABLE: Array = np.array([NormalDist().cdf(value) for value in _TABLE_AT.tolist()])
