"""Decides when a measurement may stop because more of it cannot change the plan."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from models.plan import MIN_GAIN, Form, Rounds, is_faster
from models.timing import MIN_ROUNDS, WARM_RUNS, lasts_s

DECIDED_RATIO = 1.5  # a form that takes this many times as long in every round needs no more rounds
MAX_BUDGETS = 5  # in budgets: a size that would take longer is never timed
LOST_RATIO = 1.1  # a slow form that takes this many times as long in every round has lost
SLOW_S = 0.05  # from here on the kernels are busy: a form that has lost would not win when larger
STEADY_DIFFERENCE = 0.1  # times per item are equal if they differ by a smaller share

# Form -> seconds of one forward, one number per round: the measurements at one size.
RoundTimes: TypeAlias = Mapping[Form, Sequence[float]]


def is_decided(times_by_form: RoundTimes, far: float = DECIDED_RATIO) -> bool:
    """Whether more rounds change nothing: all forms but one took `far` times as long in each."""
    if not times_by_form:
        return True
    best = min(times_by_form, key=lambda form: statistics.median(times_by_form[form]))
    return all(
        other >= far * own
        for form in times_by_form.keys() - {best}
        for own, other in zip(times_by_form[best], times_by_form[form], strict=True)
    )


def remaining(times_by_form: RoundTimes) -> list[Form]:
    """Return the forms to time at larger sizes: without slow ones that have clearly lost."""
    if min((min(times) for times in times_by_form.values()), default=0.0) < SLOW_S:
        return list(times_by_form)
    return [form for form in times_by_form if not _loses(form, times_by_form)]


def _loses(form: Form, times_by_form: RoundTimes) -> bool:
    """Whether some other form was clearly faster in every round."""
    return any(
        all(
            own >= LOST_RATIO * other for own, other in zip(times_by_form[form], times, strict=True)
        )
        for times in times_by_form.values()
    )


def is_conclusive(times_by_form: RoundTimes) -> bool:
    """Whether each form equals the fastest by its lower quartile, or is clearly slower."""
    if not times_by_form:
        return True
    best = min(times_by_form, key=lambda form: lasts_s(times_by_form[form]))
    return all(
        lasts_s(times_by_form[best]) >= (1 - MIN_GAIN) * lasts_s(times)
        or is_faster(times_by_form[best], times)
        for times in times_by_form.values()
    )


def can_stop(
    contests: Iterable[Rounds], size: int, budget_s: float, warm_runs: int = WARM_RUNS
) -> bool:
    """Whether batches of `size` and larger ones need not be timed.

    Fast sizes are always timed, slow ones only while larger batches may change the plan, and those
    that would take MOST times the budget never, once two sizes are known.

    Args:
        contests: the measurements so far, for each precision, which has its own plan.
        size: the next size, larger than all measured ones.
        budget_s: sizes that can be timed within this are fast.
        warm_runs: runs of each form before it is timed.
    """
    nonempty = [rounds for rounds in contests if rounds]
    forwards_s = sum(_forwards_s(rounds, size) for rounds in nonempty)
    least_s = (warm_runs + MIN_ROUNDS) * forwards_s
    if least_s > MAX_BUDGETS * budget_s and any(len(rounds) > 1 for rounds in nonempty):
        return True
    return least_s > budget_s and all(in_proportion(rounds) for rounds in nonempty)


def in_proportion(rounds: Rounds) -> bool:
    """Whether larger batches would change nothing.

    This holds if each form of the largest size was measured at the one before, took the same time
    per item, and beat the same others.
    """
    if len(rounds) < 2:
        return False
    small, large = sorted(rounds)[-2:]
    fewer, more = rounds[small], rounds[large]
    if more.keys() - fewer.keys():
        return False
    growths = [lasts_s(more[form]) * small / (lasts_s(fewer[form]) * large) for form in more]
    return all(abs(growth - 1) <= STEADY_DIFFERENCE for growth in growths) and all(
        is_faster(fewer[one], fewer[other]) == is_faster(more[one], more[other])
        for one, other in itertools.permutations(more, 2)
    )


def _forwards_s(rounds: Rounds, size: int) -> float:
    """Extrapolate the total time of one forward of every form to a larger size."""
    largest = max(rounds)
    return sum(lasts_s(times) for times in rounds[largest].values()) * size / largest
