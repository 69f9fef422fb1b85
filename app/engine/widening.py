"""Chooses items of other lengths to join a batch: wasted padding against saved batches."""

from __future__ import annotations

from collections.abc import Sequence

from app.engine.batch_cost import BatchCost
from app.engine.queue import ShapeView

NEIGHBOURS = 16  # groups on each side: two doublings of the length; more rarely saves time


def widened(
    first: ShapeView, shapes: Sequence[ShapeView], cost: BatchCost, share: float = 1.0
) -> ShapeView:
    """The best batch with the items of `first` and of a range of lengths around them.

    The worth of each length's items is their time in batches of their own, of the best size. The
    batch with the most worth per second wins: a longer item adds its own work and pads all others,
    a shorter one is padded itself, and each saves a part of a batch.

    Args:
        first: the group that is due first.
        shapes: all waiting groups, including `first`.
        cost: cost model of the replica that would run it; without measurements `first` is returned.
        share: share of the waiting items for this replica.
    """
    signature, length = first.groups[0]
    if cost.item_s(length) <= 0:
        return first
    alike = sorted(
        (each for each in shapes if each.groups[0][0] == signature), key=lambda each: each.length
    )
    at = alike.index(first)
    alike, at = alike[max(0, at - NEIGHBOURS) : at + 1 + NEIGHBOURS], min(at, NEIGHBOURS)
    worths = [each.waiting * cost.item_s(each.length) for each in alike]
    best_low, best_high, best_gain = at, at, 0.0
    up_to_waiting, up_to_worth = 0, 0.0  # from `first` to the longest
    for high in range(at, len(alike)):
        padded_to = alike[high].length
        most = cost.batch_size(first.allowed_s, padded_to)
        up_to_waiting += alike[high].waiting
        up_to_worth += worths[high]
        waiting, worth = up_to_waiting, up_to_worth
        for low in range(at, -1, -1):
            if low < at:
                waiting += alike[low].waiting
                worth += worths[low]
            items = max(1, min(most, round(waiting * share)))
            gain = worth * items / waiting / cost.expected_s(items, padded_to)
            if gain > best_gain:
                best_low, best_high, best_gain = low, high, gain
            if items == most:
                break  # no room for shorter items
    if best_low == best_high:
        return first
    best = alike[best_low : best_high + 1]
    return ShapeView(
        (*first.groups, *[each.groups[0] for each in best if each is not first]),
        best[-1].length,
        sum([each.waiting for each in best]),
        min([each.oldest_at for each in best]),
        first.due_at,
        first.allowed_s,
    )
