"""The queue of one model: tickets of one group wait together until a batch is formed."""

from __future__ import annotations

import enum
import heapq
from bisect import bisect_left, bisect_right, insort_left, insort_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np

from app.engine.batch_cost import BatchCost
from app.engine.batch_policy import BatchLimits
from app.engine.batch_runner import Contract
from app.engine.complaints import Complaints
from app.engine.copies import Copies
from app.engine.demand import Demand
from app.engine.singleflight import Flight, SingleFlight
from app.metrics.bound import ModelMetrics
from app.types import Array, Group, Item, ModelId

_due_at = attrgetter("due_at")


class TicketState(enum.Enum):
    """State of a ticket; it never goes back, except once from RUNNING to WAITING.

    ASKED is used only with a second cache, which is queried before the ticket is queued.
    """

    ASKED = enum.auto()
    WAITING = enum.auto()
    RUNNING = enum.auto()
    DONE = enum.auto()


# Looking up an enum's member takes 0.2 us.
ASKED: Final = TicketState.ASKED
WAITING: Final = TicketState.WAITING
RUNNING: Final = TicketState.RUNNING
DONE: Final = TicketState.DONE
NDARRAY: Final = np.ndarray
MOST_ARREARS_S = 1.0  # maximum device time that is owed to a model


class Ticket(Flight):
    """One item's place in the queue; times are seconds of the engine's clock.

    Args:
        key: see `Flight`.
        item: the item to compute.
        enqueued_at: when it began to wait.
        due_at: the earliest deadline of its waiters, which determines its place in the queue.
        expires_at: the latest deadline, after which no request wants the answer.

    Attributes:
        group: the group of the item.
        moved: whether a replica has failed on it; it does not move a second time.
        abandoned: whether its last waiter left while it ran; it is not run again.
    """

    # Not a dataclass: compiled, its generated constructor would stay Python.
    __slots__ = (
        "abandoned",
        "due_at",
        "enqueued_at",
        "expires_at",
        "group",
        "item",
        "moved",
        "state",
    )

    def __init__(
        self, key: bytes, item: Item, enqueued_at: float, due_at: float, expires_at: float
    ) -> None:
        self.key = key
        self.waiters = set()
        self.item = item
        self.group = item.group
        self.enqueued_at = enqueued_at
        self.due_at = due_at
        self.expires_at = expires_at
        self.state = WAITING
        self.moved = False
        self.abandoned = False


class _ShapeQueue:
    """Tickets of one group, ordered by deadline.

    Each counts as many bytes as the first; in a group lengths differ by at most an eighth.

    As long as deadlines are added in order, as with one timeout for all requests, this is also the
    order of age. Otherwise finding the oldest ticket needs a search.
    """

    __slots__ = ("by_age", "group", "item_bytes", "tickets")

    def __init__(self, group: Group, item_bytes: int) -> None:
        self.group = group
        self.item_bytes = item_bytes
        self.tickets: list[Ticket] = []
        self.by_age = True

    def oldest_at(self) -> float:
        if self.by_age:
            return self.tickets[0].enqueued_at
        return min([ticket.enqueued_at for ticket in self.tickets])

    def add(self, ticket: Ticket) -> None:
        tickets = self.tickets
        if tickets and ticket.due_at < tickets[-1].due_at:
            insort_right(tickets, ticket, key=_due_at)
            self.by_age = False
        else:
            tickets.append(ticket)

    def add_again(self, ticket: Ticket) -> None:
        """Add a ticket ahead of those with the same deadline."""
        insort_left(self.tickets, ticket, key=_due_at)
        self.by_age = False

    def remove(self, ticket: Ticket) -> None:
        at = bisect_left(self.tickets, ticket.due_at, key=_due_at)
        del self.tickets[self.tickets.index(ticket, at)]


class Load(NamedTuple):
    """Number and length of items of one group."""

    items: int
    length: int = 0


ONE_ITEM = (Load(1),)


class ShapeView(NamedTuple):
    """The policy's view of items that could be one batch.

    Attributes:
        groups: their groups, all with the same signature; the first is due first.
        length: the length to which they are padded; 0 if they are not.
        due_at: the deadline of the ticket that is due first.
        allowed_s: the time from that ticket's start to its deadline.
    """

    groups: tuple[Group, ...]
    length: int
    waiting: int
    oldest_at: float
    due_at: float
    allowed_s: float


class TicketQueue:
    """A bounded queue with a part for each group; owned by the event loop.

    Limits and predictions also count tickets that are being looked up in the second cache, but no
    batch is formed from them.

    Args:
        limit_items: maximum number of waiting tickets.
        limit_bytes: maximum bytes of their arrays.

    Attributes:
        submitted: number of tickets ever submitted.
        waiting: number of waiting tickets, including those being looked up in the second cache.
        queued: number of tickets from which batches can be formed.
        waiting_bytes: bytes of the waiting tickets' items.
    """

    def __init__(self, limit_items: int, limit_bytes: int) -> None:
        self.submitted = 0
        self.waiting = 0
        self.queued = 0
        self.waiting_bytes = 0
        self.limit_items = limit_items
        self.limit_bytes = limit_bytes
        self._shapes: dict[Group, _ShapeQueue] = {}
        self._asked: dict[Group, _ShapeQueue] = {}
        self._newest: _ShapeQueue | None = None  # to which a ticket was added last

    def submit(self, ticket: Ticket) -> None:
        """Queue a ticket; the caller has checked that there is room."""
        was_asked = ticket.state is ASKED
        if was_asked:
            self.withdraw(ticket)
            ticket.state = WAITING
        shape = self._shape_of(ticket)
        shape.add(ticket)
        tickets = shape.tickets
        if was_asked and len(tickets) > 1 and tickets[-2].enqueued_at > ticket.enqueued_at:
            shape.by_age = False  # it is older than tickets that were added during its lookup
        self.submitted += 1
        self.waiting += 1
        self.queued += 1
        self.waiting_bytes += shape.item_bytes

    def ask(self, ticket: Ticket) -> None:
        """Add a ticket that is looked up in the second cache; `submit` is called later."""
        ticket.state = ASKED
        shape = self._asked.get(ticket.group)
        if shape is None:
            shape = self._asked[ticket.group] = _ShapeQueue(ticket.group, ticket.item.nbytes)
        shape.add(ticket)
        self.queued -= 1  # `_count` adds it
        self._count(shape, +1)

    def put_back(self, tickets: Sequence[Ticket]) -> None:
        """Queue accepted tickets again, once, ahead of the others and regardless of the limits."""
        for ticket in reversed(tickets):
            ticket.state, ticket.moved = WAITING, True
            shape = self._shape_of(ticket)
            shape.add_again(ticket)
            self._count(shape, +1)

    def withdraw(self, ticket: Ticket) -> None:
        """Remove a waiting ticket for which no request waits any more."""
        if ticket.state is WAITING:
            ticket.state = DONE
            shape = self._shapes[ticket.group]
            shape.remove(ticket)
            self._count(shape, -1)
            self._forget_if_empty(shape)
        elif ticket.state is ASKED:
            ticket.state = DONE
            shape = self._asked[ticket.group]
            shape.remove(ticket)
            self.queued += 1
            self._count(shape, -1)
            if not shape.tickets:
                del self._asked[ticket.group]

    def retime(self, ticket: Ticket, deadline: float) -> None:
        """Update a ticket for another request with this deadline, which now waits for it."""
        ticket.expires_at = max(ticket.expires_at, deadline)
        if deadline < ticket.due_at and (ticket.state is WAITING or ticket.state is ASKED):
            shapes = self._shapes if ticket.state is WAITING else self._asked
            shape = shapes[ticket.group]
            shape.remove(ticket)
            ticket.due_at = deadline
            shape.add(ticket)
        ticket.due_at = min(deadline, ticket.due_at)

    def shapes(self) -> list[ShapeView]:
        """One view for each waiting group."""
        views = []
        for group, shape in self._shapes.items():
            first = shape.tickets[0]
            allowed_s = first.due_at - first.enqueued_at
            waiting, oldest_at = len(shape.tickets), shape.oldest_at()
            views.append(ShapeView((group,), group[1], waiting, oldest_at, first.due_at, allowed_s))
        return views

    @property
    def shape_count(self) -> int:
        """Number of waiting groups; one that is also being looked up counts twice."""
        return len(self._shapes) + len(self._asked)

    def waiting_by_shape(self) -> list[Load]:
        """Number of waiting tickets in each group."""
        if self._asked:
            return self._with_asked(lambda shape: len(shape.tickets))
        return [Load(len(shape.tickets), group[1]) for group, shape in self._shapes.items()]

    def due_before(self, deadline: float) -> list[Load]:
        """Waiting tickets due no later than a deadline, which are done before such a ticket."""
        if self._asked:
            return self._with_asked(
                lambda shape: bisect_right(shape.tickets, deadline, key=_due_at)
            )
        return [
            Load(bisect_right(shape.tickets, deadline, key=_due_at), group[1])
            for group, shape in self._shapes.items()
        ]

    def _with_asked(self, count: Callable[[_ShapeQueue], int]) -> list[Load]:
        """The count for each group, over queued tickets and those being looked up."""
        items: dict[Group, int] = {}
        for shapes in (self._shapes, self._asked):
            for group, shape in shapes.items():
                items[group] = items.get(group, 0) + count(shape)
        return [Load(number, group[1]) for group, number in items.items()]

    def due_at(self, group: Group, place: int) -> float:
        """When the ticket at this place of a waiting group is due."""
        return self._shapes[group].tickets[place].due_at

    def take(
        self, groups: Sequence[Group], size: int, now: float, start: int = 0
    ) -> tuple[list[Ticket], list[Ticket]]:
        """Take up to `size` tickets of these groups for a batch, the earliest due first.

        With `start`, which is a place in the only group, it leaves those before.

        Returns:
            The batch, now RUNNING, and expired tickets, now DONE, which are not computed.
        """
        shapes = list(map(self._shapes.__getitem__, groups))
        tickets: Iterable[Ticket] = shapes[0].tickets
        if start:
            tickets = shapes[0].tickets[start : start + size]
        elif len(shapes) > 1:
            tickets = heapq.merge(*[shape.tickets for shape in shapes], key=_due_at)
        batch: list[Ticket] = []
        expired: list[Ticket] = []
        taken = dict.fromkeys(groups, 0)  # counted only if there are several
        for ticket in tickets:
            if len(batch) == size:
                break
            if len(shapes) > 1:
                taken[ticket.group] += 1
            if ticket.expires_at <= now:
                ticket.state = DONE
                expired.append(ticket)
            else:
                ticket.state = RUNNING
                batch.append(ticket)
        if len(shapes) == 1:
            taken[groups[0]] = len(batch) + len(expired)
        for count, shape in zip(taken.values(), shapes, strict=True):
            del shape.tickets[start : start + count]
            self._count(shape, -count)
            self._forget_if_empty(shape)
        return batch, expired

    def _shape_of(self, ticket: Ticket) -> _ShapeQueue:
        newest = self._newest
        if newest is not None and newest.group == ticket.group:  # usual; hashing takes longer
            return newest
        shape = self._shapes.get(ticket.group)
        if shape is None:
            shape = self._shapes[ticket.group] = _ShapeQueue(ticket.group, ticket.item.nbytes)
        self._newest = shape
        return shape

    def _count(self, shape: _ShapeQueue, change: int) -> None:
        self.waiting += change
        self.queued += change
        self.waiting_bytes += change * shape.item_bytes

    def _forget_if_empty(self, shape: _ShapeQueue) -> None:
        if not shape.tickets:
            del self._shapes[shape.group]
            self._newest = None


def on_its_own(item: Item) -> Item:
    """An item that keeps only its own bytes alive, which the queue counts.

    The items of one body are mostly views of one common array, which lives as long as any of them.
    A note is for the answers of one request; its batch does not need it.
    """
    for array in item.arrays.values():
        if array.base is not None and _is_part(array):
            arrays = {name: a.copy() if _is_part(a) else a for name, a in item.arrays.items()}
            return Item(arrays, item.signature, item.length)
    return item if item.note is None else Item(item.arrays, item.signature, item.length)


def _is_part(array: Array) -> bool:
    whole = array.base
    return isinstance(whole, NDARRAY) and whole.nbytes > array.nbytes


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """Limits of one model's queue, and of its batches.

    Attributes:
        queue_limit_items: maximum number of waiting items.
        queue_limit_bytes: maximum bytes of these items.
        caches: whether its predictions are cached.
    """

    batches: BatchLimits
    queue_limit_items: int
    queue_limit_bytes: int
    caches: bool = True


@dataclass(eq=False, slots=True)
class ModelQueue:
    """One model's queue, and the state of serving it.

    Attributes:
        costs: cost models of its batches, by the kind of device.
        caches: whether its predictions are cached.
        used_s: device time as fair sharing counts it: the model with the least goes first, and a
            model that was idle counts as having used as much as the others.
        running_s: expected device time of its running batches.
        running: number of its running batches.
        gathering_since: when the batch that is growing was first considered.
        full: number of items that filled a batch when one was last formed; 0 once none waits.
        seen: number of tickets that had been submitted one turn ago.
        arrived: number of tickets submitted since.
        flights: waiting and running flights, by key; each revision of a version has its own.
        complaints: logs the model's errors about single items.
        demand: loads the model on demand; None: its replicas always have it.
        copies: takes copies of what is computed; None: nobody does.
    """

    model: ModelId
    tickets: TicketQueue
    limits: BatchLimits
    contract: Contract
    metrics: ModelMetrics
    costs: dict[str, BatchCost]
    caches: bool = True
    used_s: float = 0.0
    running_s: float = 0.0
    running: int = 0
    gathering_since: float | None = None
    full: int = 0
    seen: int = 0
    arrived: int = 0
    flights: SingleFlight[Ticket] = field(default_factory=SingleFlight)
    complaints: Complaints = field(default_factory=Complaints)
    demand: Demand | None = None
    copies: Copies | None = None

    def turn(self, now: float, fair_s: float) -> None:
        """Record what the event loop has read in a turn.

        Args:
            now: the current time.
            fair_s: the highest device time of a model when it was served.
        """
        items = self.tickets.submitted - self.seen
        idle = items >= self.tickets.queued  # an idle model saves up no device time
        self.used_s = max(self.used_s, fair_s if idle else fair_s - MOST_ARREARS_S)
        self.seen = self.tickets.submitted
        self.arrived = items
        for cost in self.costs.values():
            if cost.is_limited:
                cost.turn(now)

    def adjust(self, limits: ModelLimits) -> None:
        """Change the limits; items that already wait stay."""
        self.limits, self.caches = limits.batches, limits.caches
        for cost in self.costs.values():
            cost.limit(limits.batches.max_batch_size)
        self.tickets.limit_items = limits.queue_limit_items
        self.tickets.limit_bytes = limits.queue_limit_bytes

    def grows(self, now: float) -> bool:
        """Whether to form a batch later, because every turn of the event loop brings more items.

        Called when a replica is idle. Requests that have reached the machine are read first: a wave
        of them becomes one batch, not a small and a large one.
        """
        if self.gathering_since is None:
            self.gathering_since = now
        if self.arrived == 0 or now - self.gathering_since >= self.limits.gather_s:
            return False
        return self.tickets.queued < (self.full or self.limits.max_batch_size)

    @property
    def is_empty(self) -> bool:
        """Whether no item of the model waits or runs."""
        return self.tickets.waiting == 0 and self.running == 0
