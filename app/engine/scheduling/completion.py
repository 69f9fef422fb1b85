"""When will replicas be done with some batches? Pure functions of numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from app.engine.scheduling.batch_cost import WEIGHT, BatchCost

MARGIN = 2.0  # mean deviations added to what batches are expected to take
# Variance of a running mean, as a share of the variance of one batch.
MEAN_VARIANCE = WEIGHT / (2 - WEIGHT)
ROUNDING = 1e-9  # of quotients


class Part(NamedTuple):
    """What one replica would do if it did all of the work.

    Attributes:
        free_s: seconds until it can begin.
        free_off_s: mean deviation of that.
        batches: how many the work makes there; at least one.
        batch_s: seconds of one of them.
        deviation: of that, as a share.
    """

    free_s: float
    free_off_s: float
    batches: int
    batch_s: float
    deviation: float


class Span(NamedTuple):
    """Seconds until something is expected to be done, and how much longer that may take."""

    seconds: float
    margin_s: float = 0.0


def completion(parts: Sequence[Part]) -> Span:
    """When replicas that share some work have done all of it.

    Each one does batch after batch as soon as it is free. First the time is found at which they
    would be done if batches could be divided, then the end of the batch that completes the work.

    Args:
        parts: one per replica; with none, or one whose batches take no time, it is done at once.
    """
    if not parts or any(part.batch_s <= 0 for part in parts):
        return Span(0.0)
    if len(parts) == 1:
        until_s = parts[0].free_s + parts[0].batches * parts[0].batch_s
    else:
        until_s = _last_end_s(parts, _undivided_s(parts))
    return Span(until_s, max(_margin_s(part, until_s) for part in parts))


def batches(cost: BatchCost, counts: Sequence[int], size: int) -> tuple[int, float]:
    """How many batches of at most `size` items these make, and their seconds on one replica.

    Args:
        cost: of the replica.
        counts: items of each signature: two of them share no batch.
        size: at least one.
    """
    full = partial = items = 0  # `items` are those of the batches that are not full
    for count in counts:
        full += count // size
        if count % size:
            partial += 1
            items += count % size
    seconds = full * cost.expected_s(size)
    if partial:  # as if they were all of one size: there may be hundreds
        seconds += partial * cost.expected_s(-(-items // partial))
    return full + partial, seconds


def _undivided_s(parts: Sequence[Part]) -> float:
    speed, begun, until_s = 0.0, 1.0, math.inf  # of all the work, per second
    for part in sorted(parts):
        if part.free_s >= until_s:
            break  # it is done before this one could help
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


def _margin_s(part: Part, until_s: float) -> float:
    """How much longer than expected its share may take.

    Batches are off independently of each other, but the running mean that all of them are expected
    by is off for all alike: the variance of n batches is n + n^2 times the mean's.
    """
    n = min(part.batches, max(0.0, until_s - part.free_s) / part.batch_s)
    off_s = part.deviation * part.batch_s * math.sqrt(n * (1 + n * MEAN_VARIANCE))
    return MARGIN * math.hypot(off_s, part.free_off_s)
