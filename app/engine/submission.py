"""Requests that the engine has accepted, and how their callers get the answers."""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable

import structlog

from app.engine.clock import Clock, Timer
from app.errors import Abandoned, DeadlineExceeded, TorchlaneError
from app.telemetry.tracing import RequestTrace
from app.types import Answer, CacheCounts, Outcome

LOG = structlog.get_logger(__name__)
COMPACT_ABOVE = 64  # settled submissions that the heap may contain before it is swept
NO_COUNTS = CacheCounts()


class Submission:
    """An accepted request: it waits on its flights, collects one outcome per key, notifies once.

    A coroutine awaits `answer`. A callback is set with `when_settled` and then calls `result`. A
    caller that leaves calls `abandon`.

    Args:
        deadline: the moment after which the caller no longer wants an answer.
        closed: called with the last outcome, or when the wait ends without it.
        label: the request's name in the log; empty if it has none.
        began: when the request was submitted.

    Attributes:
        is_settled: whether `result` can be called.
        keys: keys of the items, in order; equal items have equal keys.
        outcomes: outcomes so far, by key.
        cache: how its items were found so far, once they are known.
        error: why the wait has ended without all outcomes.
        queue_s, compute_s: the most seconds that any item was queued, or computed.
        batch_items: size of the largest batch.
        then: the caller's callback for the moment when it is settled.
        number: its number among the open submissions; 0 if it never waited.
        trace: the request's trace, if a sink follows it.
        invalid: number of items that were left out because they do not fit the model.
        is_request: whether it counts as a request; else no caller sent its items.
    """

    __slots__ = (
        "_missing",
        "batch_items",
        "began",
        "cache",
        "closed",
        "compute_s",
        "deadline",
        "error",
        "invalid",
        "is_request",
        "is_settled",
        "keys",
        "label",
        "number",
        "outcomes",
        "queue_s",
        "then",
        "trace",
    )

    def __init__(
        self,
        deadline: float,
        closed: Callable[[Submission], None],
        label: bytes = b"",
        began: float = 0.0,
    ) -> None:
        self.deadline = deadline
        self.closed = closed
        self.label = label
        self.began = began
        self.is_settled = True  # until it expects something
        self.keys: list[bytes] = []
        self.outcomes: dict[bytes, Outcome] = {}
        self.cache = NO_COUNTS
        self.error: Exception | None = None
        self.queue_s = 0.0
        self.compute_s = 0.0
        self.batch_items = 0
        self.then: Callable[[], None] | None = None
        self.number = 0
        self.trace: RequestTrace | None = None
        self.invalid = 0
        self.is_request = True
        self._missing = 0

    # For the caller

    def when_settled(self, call: Callable[[], None]) -> None:
        """Call `call` on the event loop when it is settled; it must not be settled yet."""
        self.then = call

    def follow(self, trace: RequestTrace) -> None:
        """Record the batches of its items in a trace; called before any batch is formed."""
        self.trace = trace

    def fail(self, error: Exception) -> None:
        """End the wait: `result` raises this error. Harmless if the wait has ended."""
        if not self.is_settled:
            self.is_settled = True
            self.error = error
            self.closed(self)

    def abandon(self) -> None:
        """End the wait because the caller has left: `result` raises `Abandoned`."""
        self.fail(Abandoned("the caller disconnected before the answer was ready"))

    def result(self) -> Answer:
        """The outcomes, in the order of the items; it must be settled.

        Raises:
            DeadlineExceeded, ShuttingDown, Abandoned: if there was no answer in time.
            Exception: the argument of `fail`.
        """
        if self.error is not None:
            raise self.error
        outcomes: list[Outcome] = []
        for key in self.keys:
            outcomes.append(self.outcomes[key])  # compiled, a loop is faster
        return Answer(outcomes, self.cache, self.queue_s, self.compute_s, self.batch_items)

    def forget(self) -> None:
        """Drop the outcomes, so that only their reader keeps them; there is no `result` then."""
        self.outcomes = {}

    async def settled(self) -> None:
        """Return when it is settled. Cancelling this abandons the request, as `abandon` does."""
        if self.is_settled:
            return
        woken = asyncio.get_running_loop().create_future()
        self.when_settled(lambda: None if woken.done() else woken.set_result(None))
        try:
            await woken
        except asyncio.CancelledError:
            self.abandon()
            raise

    async def answer(self) -> Answer:
        """Wait for `result`."""
        await self.settled()
        return self.result()

    # For the engine

    def expect(self) -> None:
        """Wait for one more outcome, or for the items themselves; see `complete`."""
        self._missing += 1
        self.is_settled = False

    def settle(
        self, key: bytes, outcome: Outcome, queue_s: float, compute_s: float, batch_items: int
    ) -> None:
        """Record the outcome of a key; keep the longest times and the largest batch."""
        self.outcomes[key] = outcome
        self.queue_s = max(self.queue_s, queue_s)
        self.compute_s = max(self.compute_s, compute_s)
        self.batch_items = max(self.batch_items, batch_items)
        self._missing -= 1
        if self._missing == 0 and not self.is_settled:
            self.is_settled = True
            self.closed(self)

    def complete(self) -> None:
        """Record that the request's items have arrived."""
        self._missing -= 1
        if self._missing == 0 and not self.is_settled:
            self.is_settled = True
            self.closed(self)

    def expire(self) -> None:
        """End the wait because the deadline has passed."""
        self.fail(DeadlineExceeded("the deadline has passed; allow more time or send less"))


class OpenSubmissions:
    """Expires all waiting requests with one timer: a timer for each would cost 3 us.

    Owned by the event loop. If all requests have the same timeout, deadlines are added in order,
    and the first submission expires first; a heap has the others.

    Args:
        clock: the clock of the deadlines.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # By number: submissions whose deadlines were added in order, and the others.
        self._in_order: dict[int, Submission] = {}
        self._others: dict[int, Submission] = {}
        self._latest = -math.inf  # latest deadline in order
        # Settled submissions are removed from it later. It has only their numbers, so that they and
        # all that they reference are freed at once.
        self._by_deadline: list[tuple[float, int]] = []
        self._number = 0
        self._timer: Timer | None = None
        self._timer_at = 0.0
        self._emptied: asyncio.Future[None] | None = None

    def add(self, submission: Submission) -> None:
        """Add a submission, which waits until it is closed or its deadline passes."""
        deadline = submission.deadline
        number = submission.number = self._number = self._number + 1
        if deadline >= self._latest or not self._in_order:
            self._latest = deadline
            self._in_order[number] = submission
        else:
            self._add_out_of_order(submission)
        if self._timer is None or deadline < self._timer_at:
            self._set_timer(deadline)

    def hasten(self, submission: Submission, deadline: float) -> None:
        """Set an earlier deadline for a submission; harmless if it does not wait."""
        number = submission.number
        if number not in self._in_order and number not in self._others:
            return
        submission.deadline = deadline
        self._in_order.pop(number, None)
        self._add_out_of_order(submission)
        if self._timer is None or deadline < self._timer_at:
            self._set_timer(deadline)

    def close(self, submission: Submission) -> None:
        """Remove a submission; harmless if it does not wait."""
        number = submission.number
        if number in self._in_order:
            del self._in_order[number]
        elif number in self._others:
            del self._others[number]
        emptied = self._emptied
        if emptied is not None and self._is_empty() and not emptied.done():
            emptied.set_result(None)

    def fail_all(self, error: TorchlaneError) -> None:
        """End every wait."""
        for submission in (*self._in_order.values(), *self._others.values()):
            submission.fail(error)

    async def until_none(self) -> None:
        """Return when no request waits."""
        while not self._is_empty():
            if self._emptied is None or self._emptied.done():
                self._emptied = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._emptied)  # other tasks may await it too

    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = when
        self._timer = self._clock.call_at(when, self._expire)

    def _is_empty(self) -> bool:
        return not self._in_order and not self._others

    def _add_out_of_order(self, submission: Submission) -> None:
        if len(self._by_deadline) > 2 * len(self._others) + COMPACT_ABOVE:
            self._by_deadline = [each for each in self._by_deadline if each[1] in self._others]
            heapq.heapify(self._by_deadline)
        self._others[submission.number] = submission
        # It may also have an older entry, with its former deadline: it is closed by then.
        heapq.heappush(self._by_deadline, (submission.deadline, submission.number))

    def _expire(self) -> None:
        self._timer = None
        now = self._clock.now()
        due: list[Submission] = []
        for submission in self._in_order.values():
            if submission.deadline > now:
                break
            due.append(submission)
        heap = self._by_deadline
        while heap and heap[0][0] <= now:
            other = self._others.get(heapq.heappop(heap)[1])
            if other is not None:
                due.append(other)
        due.sort(key=_place)
        for submission in due:
            try:
                submission.expire()
            except Exception:  # a bug: the others must still expire
                LOG.exception("expiry_failed")
        self._set_next_timer()

    def _set_next_timer(self) -> None:
        heap = self._by_deadline  # a new list, if it was swept meanwhile
        while heap and heap[0][1] not in self._others:
            heapq.heappop(heap)
        when = heap[0][0] if heap else math.inf
        first = next(iter(self._in_order.values()), None)
        if first is not None and first.deadline < when:
            when = first.deadline
        if when < math.inf and (self._timer is None or when < self._timer_at):
            self._set_timer(when)


def _place(submission: Submission) -> tuple[float, int]:
    """Its place in the order of expiry: for equal deadlines, the first added is first."""
    return submission.deadline, submission.number
