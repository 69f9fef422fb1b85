"""Decides when a measurement may stop because more of it cannot change the plan."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from models.plan import MIN_GAIN, Form, Rounds, is_faster
from models.timing import MIN_ROUNDS, WARM_RUNS, lasts_s

FAR = 1.5  # a form that takes this many times as long in every round needs no more rounds
MOST = 5  # in budgets: a size that would take longer is never timed
CLEARLY = 1.1  # a slow form that takes this many times as long in every round has lost
SLOW_S = 0.05  # from here on the kernels are busy: a form that has lost would not win when larger
STEADY = 0.1  # times per item are equal if they differ by a smaller share

# Form -> seconds of one forward, one number per round: the measurements at one size.
Taken: TypeAlias = Mapping[Form, Sequence[float]]


def is_decided(taken: Taken, far: float = FAR) -> bool:
    """Whether more rounds change nothing: all forms but one took `far` times as long in each."""
    if not taken:
        return True
    best = min(taken, key=lambda form: statistics.median(taken[form]))
    return all(
        other >= far * own
        for form in taken.keys() - {best}
        for own, other in zip(taken[best], taken[form], strict=True)
    )


def remaining(taken: Taken) -> list[Form]:
    """Return the forms to time at larger sizes: without slow ones that have clearly lost."""
    if min((min(times) for times in taken.values()), default=0.0) < SLOW_S:
        return list(taken)
    return [form for form in taken if not _loses(form, taken)]


def _loses(form: Form, taken: Taken) -> bool:
    """Whether some other form was clearly faster in every round."""
    return any(
        all(own >= CLEARLY * other for own, other in zip(taken[form], times, strict=True))
        for times in taken.values()
    )


def is_told(taken: Taken) -> bool:
    """Whether each form equals the fastest by its lower quartile, or is clearly slower."""
    if not taken:
        return True
    best = min(taken, key=lambda form: lasts_s(taken[form]))
    return all(
        lasts_s(taken[best]) >= (1 - MIN_GAIN) * lasts_s(times) or is_faster(taken[best], times)
        for times in taken.values()
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
    known = [rounds for rounds in contests if rounds]
    forwards_s = sum(_forwards_s(rounds, size) for rounds in known)
    least_s = (warm_runs + MIN_ROUNDS) * forwards_s
    if least_s > MOST * budget_s and any(len(rounds) > 1 for rounds in known):
        return True
    return least_s > budget_s and all(in_proportion(rounds) for rounds in known)


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
    return all(abs(growth - 1) <= STEADY for growth in growths) and all(
        is_faster(fewer[one], fewer[other]) == is_faster(more[one], more[other])
        for one, other in itertools.permutations(more, 2)
    )


def _forwards_s(rounds: Rounds, size: int) -> float:
    """Extrapolate the total time of one forward of every form to a larger size."""
    largest = max(rounds)
    return sum(lasts_s(times) for times in rounds[largest].values()) * size / largest
