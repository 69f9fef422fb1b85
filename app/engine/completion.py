"""Predicts when replicas will have run some batches; pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from app.engine.batch_cost import WEIGHT, BatchCost
from app.engine.queue import Load
from models.padding import size_class

MARGIN = 2.0  # mean deviations that are added to the expected time of batches
# Variance of a running mean, as a share of the variance of one batch.
MEAN_VARIANCE = WEIGHT / (2 - WEIGHT)
ROUNDING = 1e-9  # of quotients


class Part(NamedTuple):
    """The work of one replica if it did all the work alone.

    Attributes:
        free_s: seconds until it can begin.
        free_off_s: mean deviation of `free_s`.
        batches: number of batches there; at least one.
        batch_s: seconds of one batch.
        deviation: relative deviation of `batch_s`.
    """

    free_s: float
    free_off_s: float
    batches: int
    batch_s: float
    deviation: float


def completion_s(parts: Sequence[Part]) -> float:
    """Seconds until replicas that share some work are expected to have done all of it.

    Each replica runs batch after batch as soon as it is free. First compute the time at which they
    would be done if batches were divisible, then the end of the batch that completes the work.

    Args:
        parts: one per replica. A replica whose batches take no time has no measurements: the work
            counts as done as soon as it is free.
    """
    unknown = [part.free_s for part in parts if part.batch_s <= 0]
    if unknown or not parts:
        return min(unknown, default=0.0)
    if len(parts) == 1:
        return parts[0].free_s + parts[0].batches * parts[0].batch_s
    return _last_end_s(parts, _undivided_s(parts))


def meets(parts: Sequence[Part], within_s: float) -> bool:
    """Whether replicas will have done all the work in time, with a margin for each one's batches.

    Args:
        parts: one per replica.
        within_s: the time limit, in seconds.
    """
    done = 0.0
    for part in parts:
        own_s = within_s - part.free_s - _margin_s(part, within_s)
        if own_s >= part.batches * part.batch_s:
            return True  # it needs no other; also if it has no measurements
        if own_s > 0:
            done += math.floor(own_s / part.batch_s + ROUNDING) / part.batches
    return done >= 1 - ROUNDING


def own_share_s(whole_s: float, others_s: Sequence[float]) -> float:
    """Seconds of `whole_s` for a model that shares a device equally with others.

    Args:
        whole_s: seconds of the device.
        others_s: seconds that each other model needs.
    """
    left_s = whole_s
    for sharers, need_s in zip(range(len(others_s) + 1, 1, -1), sorted(others_s), strict=True):
        if need_s * sharers >= left_s:
            return left_s / sharers
        left_s -= need_s
    return left_s


def batches(cost: BatchCost, loads: Sequence[Load], allowed_s: float) -> tuple[int, float]:
    """Number of batches for these items, and their seconds on one replica.

    Groups without padding never share a batch. Assume that items left over from full batches are
    padded to their mean length.

    Args:
        cost: cost model of the replica.
        loads: items of each group; at least one item in total.
        allowed_s: determines the size of batches.
    """
    made, seconds = 0, 0.0
    partial = items = mixed = total = 0  # for batches that are not full
    for count, length in loads:
        size = cost.batch_size(allowed_s, length)
        full, rest = divmod(count, size)
        made += full
        seconds += full * cost.expected_s(size, length)
        if rest and length:
            mixed += rest
            total += rest * length
        elif rest:
            partial += 1
            items += rest
    if partial:  # as if all had the same size: there may be hundreds
        made += partial
        seconds += partial * cost.expected_s(-(-items // partial))
    if mixed:
        length = size_class(-(-total // mixed))
        partial = -(-mixed // cost.batch_size(allowed_s, length))
        made += partial
        seconds += partial * cost.expected_s(-(-mixed // partial), length)
    return made, seconds


def _undivided_s(parts: Sequence[Part]) -> float:
    speed, begun, until_s = 0.0, 1.0, math.inf  # of all the work, per second
    for part in sorted(parts):
        if part.free_s >= until_s:
            break  # the others are done before this one could begin
        speed += 1 / (part.batches * part.batch_s)
        begun += part.free_s / (part.batches * part.batch_s)
        until_s = begun / speed
    return until_s


def _last_end_s(parts: Sequence[Part], until_s: float) -> float:
    ends, done = [], 0.0
    for part in parts:
        whole = math.floor(max(0.0, until_s - part.free_s) / part.batch_s + ROUNDING)
        done += whole / part.batches
        ends.append(part.free_s + (whole + 1) * part.batch_s)
    while done < 1 - ROUNDING:
        until_s = min(ends)
        at = ends.index(until_s)
        done += 1 / parts[at].batches
        ends[at] += parts[at].batch_s
    return until_s


def _margin_s(part: Part, within_s: float) -> float:
    """How much longer than expected a replica may take for its share.

    Batches deviate independently of each other, but an error of the running mean, their estimate,
    affects all of them alike: the variance of n batches is n + n^2 times that of the mean.
    """
    n = min(part.batches, max(0.0, within_s) / part.batch_s) if part.batch_s > 0 else 0.0
    off_s = part.deviation * part.batch_s * math.sqrt(n * (1 + n * MEAN_VARIANCE))
    return MARGIN * math.hypot(off_s, part.free_off_s)
