"""Look up items in the second cache before they are queued, if that saves time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import structlog

from app.engine.clock import Clock, Timer
from app.engine.dispatcher import Settler
from app.engine.queue import ASKED, ModelQueue, Ticket
from app.engine.shared_tier import HIT, Found, NotFound, SharedTier, fits
from app.types import ONE_HIT, ONE_MISS, Arrays, Item, with_one_found

LOG = structlog.get_logger(__name__)


class _Question:
    """The lookups of one turn of the event loop, until they are answered or time out."""

    __slots__ = ("asked", "give_up", "is_over", "timer")

    def __init__(self, asked: list[tuple[ModelQueue, Ticket]]) -> None:
        self.asked = asked
        self.is_over = False
        self.timer: Timer | None = None
        self.give_up: Callable[[], None] | None = None


class Lookups:
    """Looks up flights in the second cache, settles those found, and queues the others.

    During the lookup a flight counts toward its queue's limits, may be joined and left, and keeps
    its deadlines. It waits at most for the tier's budget. Owned by the event loop.

    Args:
        tier: the second cache.
        clock: the engine's clock.
        settler: gets the outcomes that were found.
        poke: called after tickets were queued.
    """

    def __init__(
        self, tier: SharedTier, clock: Clock, settler: Settler, poke: Callable[[], None]
    ) -> None:
        self._tier = tier
        self._clock = clock
        self._settler = settler
        self._poke = poke
        self._turn: list[tuple[ModelQueue, Ticket]] = []

    def pays(self, queue: ModelQueue, fresh: Sequence[Item], left_s: float) -> bool:
        """Whether to look up items; if not, that is counted.

        `left_s` is the time until their deadline. It must be enough to compute them after a lookup
        that times out: otherwise a slow cache would make their answer late.
        """
        if not queue.caches or queue.contract.layout is None:
            return False
        if self._tier.is_open:
            queue.metrics.count_shared(NotFound.OPEN.value, len(fresh))
            return False
        length = max([item.length for item in fresh])
        compute_s = min([each.expected_s(len(fresh), length) for each in queue.costs.values()])
        if left_s <= self._tier.budget_s + compute_s or not self._costs_more(queue, length):
            queue.metrics.count_shared(NotFound.SKIPPED.value, len(fresh))
            return False
        return True

    def ask(self, queue: ModelQueue, ticket: Ticket) -> None:
        """Look up a flight that has just been opened, together with all others of this turn."""
        queue.tickets.ask(ticket)
        if not self._turn:
            asyncio.get_running_loop().call_soon(self._ask)
        self._turn.append((queue, ticket))

    def keep(self, queue: ModelQueue, ticket: Ticket, value: Arrays) -> None:
        """Offer a computed value to the second cache, if it would ever be looked up."""
        layout = queue.contract.layout
        if layout is None or not self._costs_more(queue, ticket.item.length):
            return
        if fits(value, layout):
            self._tier.keep(ticket.key, value)

    def _costs_more(self, queue: ModelQueue, length: int) -> bool:
        """Whether computing an item takes longer than a lookup in the second cache."""
        item_s = min([cost.item_s(length) for cost in queue.costs.values()])
        return item_s > self._tier.round_trip_s

    def _ask(self) -> None:
        turn, self._turn = self._turn, []
        asked = [each for each in turn if each[1].state is ASKED]  # the others were left since
        for queue, ticket in turn:
            if ticket.state is not ASKED:
                _count(queue, NotFound.LEFT)
        if not asked:
            return
        question = _Question(asked)
        due_at = self._clock.now() + self._tier.budget_s
        question.timer = self._clock.call_at(due_at, partial(self._due, question))
        keys = [ticket.key for _, ticket in asked]
        question.give_up = self._tier.find(keys, partial(self._answered, question))

    def _answered(self, question: _Question, found: Sequence[Found]) -> None:
        if question.is_over:
            return
        question.is_over = True
        if question.timer is not None:
            question.timer.cancel()
        queued = False
        for (queue, ticket), value in zip(question.asked, found, strict=True):
            if self._is_settled(queue, ticket, value):
                continue
            queue.tickets.submit(ticket)
            queued = True
        if queued:
            self._poke()

    def _is_settled(self, queue: ModelQueue, ticket: Ticket, value: Found) -> bool:
        """Settle a flight with the value found; False if it must be computed."""
        if ticket.state is not ASKED:
            _count(queue, NotFound.LEFT)
            return True
        if isinstance(value, NotFound):
            _count(queue, value)
            return False
        layout = queue.contract.layout
        if layout is None or not fits(value, layout):
            _count(queue, NotFound.WRONG)
            return False
        queue.metrics.count_shared(HIT)
        queue.metrics.count_lookups(ONE_HIT)
        queue.tickets.withdraw(ticket)
        for waiter in ticket.waiters:
            waiter.cache = with_one_found(waiter.cache)
        took_s = self._clock.now() - ticket.enqueued_at
        self._settler.settle(queue, ticket, value, took_s, 0.0, 0)
        return True

    def _due(self, question: _Question) -> None:
        """End a lookup at its time limit, after reading an answer that has already arrived.

        If the event loop was blocked, timers, and the calls that they schedule with `call_soon`,
        run before sockets are read.
        """
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._late, question)

    def _late(self, question: _Question) -> None:
        if question.is_over:
            return
        if question.give_up is not None:
            question.give_up()
        self._answered(question, [NotFound.TIMEOUT] * len(question.asked))


def _count(queue: ModelQueue, why: NotFound) -> None:
    """Count an item that the lookup did not find: it was not in the cache."""
    queue.metrics.count_shared(why.value)
    queue.metrics.count_lookups(ONE_MISS)
