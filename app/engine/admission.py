"""Accepts or rejects requests, at once and as a whole, before anything is changed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from app.engine.clock import Clock
from app.engine.dispatcher import Dispatcher
from app.engine.queue import ONE_ITEM, Load, ModelQueue
from app.engine.timeline import Timeline
from app.errors import DeadlineExceeded, Overloaded, PayloadTooLarge
from app.types import Item, ModelId

HOLDS_S = 0.001  # and at most a hundredth of the time that was left
HOLDS_SHARE = 0.01  # of the time left: a request with that much more is also rejected


class Rejection:
    """Rejects later requests while nothing has improved. Owned by the event loop.

    Predicting the completion time costs as much as the rest of the engine's work for a rejected
    request. A rejection holds for a later request that has no more time left and is due no earlier,
    as long as no fewer items wait and no fewer batches run. Any other improvement, such as a
    replica that is ready again, is noticed a millisecond late.

    Args:
        now: the time of the rejection.
        left_s: the time that the rejected request had left.
        deadline: the deadline of that request.
        waiting: number of items that waited for the model.
        running: number of its running batches.
        clear_at: when the waiting items will be done.
        message: for the caller.
    """

    __slots__ = (
        "_deadline",
        "_left_s",
        "_running",
        "_until",
        "_waiting",
        "clear_at",
        "message",
    )

    def __init__(
        self,
        now: float,
        left_s: float,
        deadline: float,
        *,
        waiting: int,
        running: int,
        clear_at: float,
        message: str,
    ) -> None:
        # If no time is left, the result does not depend on how late the request is.
        holds_s = min(HOLDS_S, HOLDS_SHARE * left_s) if left_s > 0 else HOLDS_S
        self._until = now + holds_s
        self._left_s = left_s + holds_s if left_s > 0 else 0.0
        self._deadline = deadline
        self._waiting = waiting
        self._running = running
        self.clear_at = clear_at
        self.message = message

    def holds(self, now: float, left_s: float, deadline: float, waiting: int, running: int) -> bool:
        """Whether it holds for a request that is no smaller than the rejected one."""
        return (
            now < self._until
            and left_s <= self._left_s
            and deadline >= self._deadline
            and waiting >= self._waiting
            and running >= self._running
        )


# Share of the time allowed, reserved for the network, which the server cannot measure, and for
# whatever slows down all batches at once.
RESERVE = 0.06


class Admission:
    """Rejects requests that do not fit into the queue, or that would be answered too late.

    Args:
        timeline: predicts when a request would be answered.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        # The newest rejection of one item, by model and length.
        self._rejections: dict[tuple[ModelId, int], Rejection] = {}

    def forget(self, model: ModelId) -> None:
        """Forget the rejections of a model that is no longer served."""
        for key in [key for key in self._rejections if key[0] == model]:
            del self._rejections[key]

    def admit(
        self,
        queue: ModelQueue,
        fresh: Sequence[Item],
        deadline: float,
        lag_s: float,
        now: float,
        *,
        foreseen: bool = False,
        are_copies: bool = False,
    ) -> None:
        """Admit a request, or raise an error.

        Args:
            queue: the queue of its model.
            fresh: its items that would have to be queued.
            deadline: the deadline of all items.
            lag_s: the result of `ReadLag` when the request was read.
            now: the current time, on the engine's clock.
            foreseen: whether `foresee` has just returned for one item of the shortest length.
            are_copies: whether no caller sent the items, so that they are no use of the model.

        Raises:
            DeadlineExceeded, Overloaded, PayloadTooLarge: if it is rejected.
            ModelNotReady: if its model cannot be loaded on demand.
        """
        allowed_s = deadline - now
        if allowed_s <= 0:
            raise DeadlineExceeded("the deadline had passed on arrival; allow more time")
        if fresh:
            self._check_room(queue, fresh, allowed_s)
            demand = queue.demand
            if demand is not None and demand.is_cold:
                demand.ask(allowed_s, for_copies=are_copies)
            elif not (foreseen and len(fresh) == 1 and fresh[0].length == 0):
                self.foresee(queue, _loads(fresh), deadline, lag_s, now)
            if demand is not None and not are_copies:
                demand.used()

    def foresee(
        self, queue: ModelQueue, fresh: Sequence[Load], deadline: float, lag_s: float, now: float
    ) -> None:
        """Check that items are predicted to be answered by their deadline.

        Args:
            queue: the queue of their model.
            fresh: number of items in each group.
            deadline: the deadline of all items.
            lag_s: the result of `ReadLag` when the request was read.
            now: the current time, on the engine's clock.

        Raises:
            Overloaded: if they would be late.
        """
        allowed_s = deadline - now
        left_s = allowed_s * (1 - RESERVE) - lag_s
        waiting = queue.tickets.waiting
        rejections = self._rejections
        known = rejections.get((queue.model, fresh[0].length)) if rejections else None
        if known and waiting and known.holds(now, left_s, deadline, waiting, queue.running):
            raise Overloaded(known.message, retry_after_s=max(0.0, known.clear_at - now))
        if self._timeline.can_meet(queue, fresh, deadline, left_s, now):
            return
        clear_s = self._timeline.clear_s(queue, allowed_s)
        message = (
            f"cannot meet the {allowed_s * 1000:.0f} ms deadline: {waiting} items are queued; try "
            "again later, allow more time or ask another server"
        )
        if len(fresh) == 1 and fresh[0].items == 1:
            self._rejections[queue.model, fresh[0].length] = Rejection(
                now,
                left_s,
                deadline,
                waiting=waiting,
                running=queue.running,
                clear_at=now + clear_s,
                message=message,
            )
        raise Overloaded(message, retry_after_s=clear_s)

    def _check_room(self, queue: ModelQueue, fresh: Sequence[Item], allowed_s: float) -> None:
        """Reject items that do not fit into the queue now, or that never could."""
        tickets, nbytes = queue.tickets, 0
        for item in fresh:
            nbytes += item.nbytes
        if len(fresh) > tickets.limit_items:
            raise PayloadTooLarge(
                f"the request has {len(fresh)} different items, but the queue limit is "
                f"{tickets.limit_items}; split it"
            )
        if nbytes > tickets.limit_bytes:
            raise PayloadTooLarge(
                f"the request's different items have {nbytes} bytes, but the queue limit is "
                f"{tickets.limit_bytes}; split it, or send smaller items"
            )
        if len(fresh) > tickets.limit_items - tickets.waiting:
            raise Overloaded(
                f"{tickets.waiting} items are queued and {len(fresh)} more do not fit "
                f"(limit {tickets.limit_items}); try again later or send fewer at once",
                retry_after_s=self._timeline.clear_s(queue, allowed_s),
            )
        if nbytes > tickets.limit_bytes - tickets.waiting_bytes:
            raise Overloaded(
                f"{tickets.waiting_bytes} bytes are queued and {nbytes} "
                f"more do not fit (limit {tickets.limit_bytes}); try again later or send fewer at "
                "once",
                retry_after_s=self._timeline.clear_s(queue, allowed_s),
            )


def _loads(items: Sequence[Item]) -> Sequence[Load]:
    """Number of items in each group."""
    if len(items) == 1:
        item = items[0]
        return [Load(1, item.group[1])] if item.length else ONE_ITEM
    groups = Counter([item.group for item in items])
    return [Load(count, group[1]) for group, count in groups.items()]


IDLE_S = 0.001  # after a longer time without work, the event loop was waiting for a request


class ReadLag:
    """Follows the turns of the event loop; runs on the event loop.

    Bytes read in a turn were in the socket buffer when the loop polled, and may have arrived just
    after the previous poll.

    Args:
        clock: the engine's clock.
        dispatcher: knows when the loop last finished a turn's work on batches.
    """

    def __init__(self, clock: Clock, dispatcher: Dispatcher) -> None:
        self._clock = clock
        self._dispatcher = dispatcher
        self._reading = False  # whether the loop is in the turn that began at `_turn_at`
        self._turn_at = self._read_at = clock.now()
        self._since = 0.0

    def seconds(self) -> float:
        """Upper bound on the time in the buffer of the bytes just read; called for each request."""
        now = self._clock.now()
        if not self._reading:
            self._reading = True
            worked_at = max(self._read_at, self._dispatcher.worked_at)
            self._since = self._turn_at if now - worked_at < IDLE_S else now
            self._turn_at = now
            asyncio.get_running_loop().call_soon(self._has_read)
        return now - self._since

    def _has_read(self) -> None:
        self._reading = False
        self._read_at = self._clock.now()
