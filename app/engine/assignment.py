"""Which of the idle replicas gets the next batch of a lane, and how large a part of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from app.engine.batching import LaneView
from app.engine.pace import Pace
from app.engine.replicas import Replica
from app.types import ModelId

# An idle replica stays idle where one that is busy would have all that waits done in this share of
# the time that it takes for one item.
MUCH_SOONER = 0.5
# A replica that is thought to be too slow gets one item all the same, after so many times what that
# is thought to take: else nobody would ever find out that it is not.
TRY_AFTER = 20.0
LATER_S = 1e-6  # after the moment itself


class Assignment(NamedTuple):
    """A replica, how many items it gets at most, and its share of the speed of all idle ones."""

    replica: Replica
    most: int
    share: float


class Option(NamedTuple):
    """A replica that serves the model, and how."""

    replica: Replica
    pace: Pace


def assign(
    lane: LaneView, free: Sequence[Option], busy: Sequence[Option], now: float
) -> tuple[Assignment | None, float | None]:
    """The quickest of the idle replicas; None: what waits is better left to those that are busy.

    Whoever is left idle is told so: its next batch could not have begun before.

    Returns:
        that one, and where there is none the moment at which to look again if nothing happens.

    Args:
        lane: whose batch it is.
        free: replicas that could begin it now; at least one.
        busy: others that serve the model.
        now: the moment.
    """
    best: Assignment | None = None
    speeds = best_speed = 0.0
    again_at = math.inf
    known = True
    worth = 0
    for replica, pace in free:
        one_s = pace.times.expected_s(1)
        if busy and one_s > 0 and _is_left(one_s, lane, busy, now):
            pace.left_at = now
            try_at = pace.ran_at + TRY_AFTER * one_s
            if now < try_at:
                again_at = min(again_at, try_at, *(_overdue_at(each) for each in busy))
                continue
            return Assignment(replica, 1, 1.0), None
        worth += 1
        size = pace.batch_size(lane.allowed_s)
        items = min(size, lane.waiting)
        seconds = pace.times.expected_s(items)
        known = known and seconds > 0
        speed = items / seconds if seconds > 0 else 0.0
        speeds += speed
        if best is None or speed > best_speed:
            best, best_speed = Assignment(replica, size, 1.0), speed
    if best is None:
        return None, again_at
    share = best_speed / speeds if known else 1 / worth
    return (best if worth == 1 else best._replace(share=share)), None


def prefetching(
    lane: LaneView, busy: Sequence[Option], model: ModelId, now: float
) -> Option | None:
    """The busy replica that would be done first with a batch of what waits, if it takes one now.

    None: it does not, and who does would be done later.

    Args:
        lane: whose batch it is.
        busy: replicas that serve the model and run a batch that will end.
        model: of the batch.
        now: the moment.
    """
    best: Option | None = None
    best_s = math.inf
    takes = False
    for option in busy:
        replica, pace = option
        items = min(pace.batch_size(lane.allowed_s), lane.waiting)
        done_s = replica.running_s(now) + pace.times.expected_s(items)
        if done_s < best_s or (done_s == best_s and not takes):
            best, best_s, takes = option, done_s, replica.can_prefetch(model)
    return best if takes else None


def _overdue_at(option: Option) -> float:
    """When it is no longer counted on."""
    return option.replica.overdue_at(option.pace.full_s) + LATER_S


def _is_left(one_s: float, lane: LaneView, busy: Sequence[Option], now: float) -> bool:
    """Whether an idle replica that takes so long for one item would rather do harm.

    It would where another one is done with all that waits long before, or where that one would be
    in time for who is due first, and this one would not.
    """
    for replica, pace in busy:
        running_s = replica.running_s(now)
        size = pace.batch_size(lane.allowed_s)
        batch_s = pace.times.expected_s(min(size, lane.waiting))
        if batch_s <= 0:
            continue
        if running_s + -(-lane.waiting // size) * batch_s <= MUCH_SOONER * one_s:
            return True
        if now + one_s > lane.due_at >= now + running_s + batch_s:
            return True
    return False
