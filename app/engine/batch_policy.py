"""Decides when to form a batch and how large: pure functions without a clock, I/O or torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

EARLY_S = 1e-6  # a shorter time is not early


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits for forming batches.

    Attributes:
        max_batch_size: maximum number of items in a batch.
        batch_wait_s: how long the oldest item may wait for more items although a replica is idle.
        gather_s: how long a batch may grow while every turn of the event loop reads more items.
    """

    max_batch_size: int
    batch_wait_s: float
    gather_s: float = 0.0


class Decision(NamedTuple):
    """Form a batch of `size` items now, or none (0); decide again in `again_in_s`, or on a change.

    An `again_in_s` of 0 means the next turn of the event loop.
    """

    size: int
    again_in_s: float | None = None


class Ahead(NamedTuple):
    """When to prepare a batch while the device runs another one.

    Attributes:
        least: smallest batch with nearly the best efficiency; 1 if other work also waits for the
            device, and would get it while this batch waits for more items.
        lead_s: seconds to prepare a batch.
    """

    least: int
    lead_s: float


def decide(
    waiting: int,
    oldest_wait_s: float,
    idle: int,
    limits: BatchLimits,
) -> Decision:
    """Decide about one model's queue of items that can share a batch.

    If a replica is idle, items do not wait, unless a wait is configured; it starts with the oldest
    item. The waiting items are spread over the idle replicas: two half batches in parallel end
    sooner than one whole batch next to an idle device.

    Args:
        waiting: number of waiting items that can share a batch.
        oldest_wait_s: how long the oldest of them has waited.
        idle: number of equal replicas that could start a batch now.
        limits: limits for the batch.
    """
    if waiting == 0 or idle == 0:
        return Decision(0)
    left_s = limits.batch_wait_s - oldest_wait_s
    if waiting < limits.max_batch_size and left_s > 0:
        return Decision(0, again_in_s=left_s)
    return Decision(min(-(-waiting // idle), limits.max_batch_size))


def decide_ahead(
    waiting: int, oldest_wait_s: float, free_in_s: float, ahead: Ahead, limits: BatchLimits
) -> Decision:
    """Decide about a batch for a replica whose device still runs another one.

    A full batch is prepared at once: waiting gains nothing. A smaller batch that is nearly as
    efficient waits for more items until preparing it takes as long as the device is still busy. A
    less efficient batch waits for the device to be idle, as if prefetching were not possible.

    Args:
        waiting: number of waiting items that can share a batch.
        oldest_wait_s: how long the oldest of them has waited.
        free_in_s: seconds until the device is expected to be idle.
        ahead: which batch is worth preparing, and when.
        limits: limits for the batch.
    """
    if waiting >= limits.max_batch_size:
        return Decision(limits.max_batch_size)
    if waiting < ahead.least:
        return Decision(0)
    early_s = max(free_in_s - ahead.lead_s, limits.batch_wait_s - oldest_wait_s)
    return Decision(waiting) if early_s <= EARLY_S else Decision(0, again_in_s=early_s)
