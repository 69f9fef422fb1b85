"""When to form a batch and how large: a pure function of numbers. No clock, no I/O, no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

ROUNDING = 1e-6  # of an item: thirds and the like are not exact
EARLY_S = 1e-6  # less than this is not early


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How batches are made.

    Attributes:
        max_batch_size: items in one batch at most.
        batch_wait_s: how long the oldest item may wait for company although a replica is idle.
        gather_s: how long a batch may grow at most while every turn of the event loop reads more.
    """

    max_batch_size: int
    batch_wait_s: float
    gather_s: float = 0.0


class Decision(NamedTuple):
    """Form a batch of `size` items now, or none (0); ask again in `again_in_s`, or on a change.

    An `again_in_s` of 0 is the next turn of the event loop.
    """

    size: int
    again_in_s: float | None = None


class Arrivals(NamedTuple):
    """What the event loop has just read.

    Attributes:
        items: of this model, in its last turn.
        gathered_s: how long a batch has been growing from turn to turn.
    """

    items: int = 0
    gathered_s: float = 0.0


NO_ARRIVALS = Arrivals()


class Ahead(NamedTuple):
    """When a batch is prepared while the device works at another one.

    Attributes:
        least: items that make a batch nearly as efficient as any; 1 where others wait for the
            device, too, and would have it while this one waits for company.
        lead_s: what preparing one takes.
    """

    least: int
    lead_s: float


def decide(
    waiting: int,
    oldest_wait_s: float,
    share: float,
    limits: BatchLimits,
    arrivals: Arrivals = NO_ARRIVALS,
) -> Decision:
    """Decide about one model's queue of items that can share a batch.

    With a replica idle nothing waits, unless a wait is configured; that wait counts from the oldest
    item. Requests that have reached the machine are read first, as long as there are more of them
    in every turn: a wave that is being parsed becomes one batch, not a small one and a large one.
    What waits is spread over the idle replicas: two half batches side by side end sooner than one
    whole batch next to an idle device, and a device that is twice as fast gets twice as much.

    Args:
        waiting: items that wait and can share a batch.
        oldest_wait_s: how long the oldest of them has waited.
        share: of what waits, what is for the replica that would run it: its part of the speed of
            all that could start now; 0: none could.
        limits: how batches are made.
        arrivals: what is being read.
    """
    if waiting == 0 or share == 0:
        return Decision(0)
    left_s = limits.batch_wait_s - oldest_wait_s
    if waiting < limits.max_batch_size and left_s > 0:
        return Decision(0, again_in_s=left_s)
    growing = arrivals.items > 0 and arrivals.gathered_s < limits.gather_s
    if waiting < limits.max_batch_size and growing:
        return Decision(0, again_in_s=0.0)
    items = math.ceil(waiting * share - ROUNDING)
    return Decision(max(1, min(items, limits.max_batch_size)))


def decide_ahead(
    waiting: int, oldest_wait_s: float, free_in_s: float, ahead: Ahead, limits: BatchLimits
) -> Decision:
    """Decide about a batch for a replica whose device still works at another one.

    A full batch is prepared at once: nothing is gained by waiting. A smaller one that is nearly as
    efficient waits for company until preparing it takes as long as the device is still busy; and
    one that is not waits for the device to be idle, as if it could not be given one before.

    Args:
        waiting: items that wait and can share a batch.
        oldest_wait_s: how long the oldest of them has waited.
        free_in_s: until the device is expected to be idle.
        ahead: what is worth preparing, and when.
        limits: how batches are made.
    """
    if waiting >= limits.max_batch_size:
        return Decision(limits.max_batch_size)
    if waiting < ahead.least:
        return Decision(0)
    early_s = max(free_in_s - ahead.lead_s, limits.batch_wait_s - oldest_wait_s)
    return Decision(waiting) if early_s <= EARLY_S else Decision(0, again_in_s=early_s)
