"""The engine: cache -> single-flight -> (second cache) -> queue -> replicas, for all models.

ARCHITECTURE.md lists its invariants, each with its test.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import structlog

from app.engine.admission import Admission, ReadLag
from app.engine.batch_cost import BatchCost
from app.engine.batch_policy import BatchLimits
from app.engine.batch_runner import Contract
from app.engine.cache import PredictionCache
from app.engine.clock import Clock
from app.engine.copies import Copies
from app.engine.demand import Demand
from app.engine.dispatcher import Dispatcher, Settler
from app.engine.keys import KeyMaker
from app.engine.lookups import Lookups
from app.engine.observer import BatchObserver
from app.engine.queue import (
    ASKED,
    DONE,
    ONE_ITEM,
    RUNNING,
    WAITING,
    ModelLimits,
    ModelQueue,
    Ticket,
    TicketQueue,
    on_its_own,
)
from app.engine.replica import READY, Replica
from app.engine.shared_tier import SharedTier
from app.engine.submission import OpenSubmissions, Submission
from app.engine.timeline import Timeline
from app.errors import (
    InvalidItem,
    ItemFailed,
    ModelNotFound,
    ModelNotReady,
    ReplicaError,
    ShuttingDown,
    TorchlaneError,
)
from app.metrics import Metrics
from app.metrics.bound import ModelMetrics
from app.metrics.gauges import ModelGauges
from app.telemetry.tracing import Tracing
from app.types import Answer, Arrays, BatchTimes, CacheCounts, Item, ModelId, Outcome, cache_counts

LOG = structlog.get_logger(__name__)
RETIRE_LOOK_S = 0.01  # interval of checks whether a model being retired is done
NOT_MEASURED: Mapping[str, BatchTimes] = MappingProxyType({})
NO_ARRAYS: Arrays = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits of the engine; times in seconds.

    Attributes:
        batches: limits of a model's batches, if it is published without limits of its own.
        queue_limit_items: maximum of its queued items, if it has no limit of its own.
        queue_limit_bytes: maximum of their bytes, if it has no limit of its own.
        cache_bytes: size limit of the prediction cache; 0 turns it off.
        cache_ttl_s: maximum lifetime of a prediction; None for no limit.
        block_s: the event loop blocks for batches that take less than this, if replicas share its
            only core; 0 if they have cores of their own (docs/adr/0012).
    """

    batches: BatchLimits
    queue_limit_items: int
    cache_bytes: int
    cache_ttl_s: float | None
    block_s: float = 0.0
    queue_limit_bytes: int = 1 << 30

    @property
    def limits(self) -> ModelLimits:
        """Limits of a model without limits of its own."""
        return ModelLimits(self.batches, self.queue_limit_items, self.queue_limit_bytes)


class _Served:
    """The engine's state of a published model.

    Args:
        queue: the queue of the model.
        keys: makes the keys of its items.
        closed: called for each request for it that has ended.
    """

    __slots__ = ("closed", "keys", "queue", "unmeasured")

    def __init__(
        self, queue: ModelQueue, keys: KeyMaker, closed: Callable[[ModelQueue, Submission], None]
    ) -> None:
        self.queue = queue
        self.keys = keys
        self.unmeasured: set[str] = set()  # pools none of whose replicas was measured
        self.closed: Callable[[Submission], None] = partial(closed, queue)


class Engine(Settler):
    """Predicts on one event loop; only replicas have threads.

    Args:
        replicas: all replicas; models are installed on them before they are published here.
        clock: the clock of all deadlines.
        metrics: where to count.
        config: limits.
        tracing: notified of each batch.
        tier: a second cache, shared with other servers.

    Attributes:
        now: returns the current time on the clock of all deadlines.
        read_lag: bounds the time that bytes just read spent in the socket buffer.
        takes_inner_calls: set while a handler calls, whose request was accepted before a drain.
    """

    def __init__(
        self,
        replicas: list[Replica],
        clock: Clock,
        metrics: Metrics,
        config: EngineConfig,
        tracing: Tracing | None = None,
        tier: SharedTier | None = None,
    ) -> None:
        self._replicas = replicas
        self._kinds = {replica.name: replica.device.kind for replica in replicas}
        self.now = clock.now  # not a method: each request needs it several times
        self._metrics = metrics
        self._config = config
        self._cache = PredictionCache(config.cache_bytes, config.cache_ttl_s, clock.now)
        metrics.cache_bytes.set_function(lambda: self._cache.used_bytes)
        metrics.cache_limit.set(config.cache_bytes)
        metrics.cache_entries.set_function(lambda: len(self._cache))
        self._timeline = Timeline(replicas, clock)
        observer = BatchObserver(replicas, metrics, tracing or Tracing())
        self._dispatcher = Dispatcher(
            replicas, self._timeline, clock, self, observer, config.block_s
        )
        self._lookups: Lookups | None = None
        if tier is not None:
            self._lookups = Lookups(tier, clock, self, self._dispatcher.poke)
        self._admission = Admission(self._timeline)
        self.read_lag = ReadLag(clock, self._dispatcher)
        self._models: dict[ModelId, _Served] = {}
        self._open = OpenSubmissions(clock)
        self._expected: dict[Submission, _Served] = {}  # requests whose items are not decoded yet
        self._draining = False
        self.takes_inner_calls = False

    async def predict(
        self, model: ModelId, items: Sequence[Item], deadline: float, *, are_copies: bool = False
    ) -> Answer:
        """One outcome per item, in order; equal items are computed once.

        Args:
            model: a published model.
            items: at least one.
            deadline: on the engine's clock.
            are_copies: whether no caller sent them, so that they count as items, but not as a
                request.

        Raises:
            ModelNotFound, ModelNotReady, Overloaded, PayloadTooLarge, ShuttingDown: if it is
                rejected; nothing was queued.
            DeadlineExceeded: if the deadline has passed.
        """
        return await self.submit(model, items, deadline, are_copies=are_copies).answer()

    def submit(
        self,
        model: ModelId,
        items: Sequence[Item],
        deadline: float,
        lag_s: float = 0.0,
        label: bytes = b"",
        invalid: int = 0,
        *,
        foreseen: bool = False,
        are_copies: bool = False,
    ) -> Submission:
        """The first half of `predict`: accept or reject the items, at once and as a whole.

        `lag_s` is the result of `read_lag` when the request was read; `label` is the request's
        name in the log if the model fails on an item; `invalid` is the number of its items that
        were left out, with which it counts as failed in part; `foreseen` is the result of `foresee`
        in the same turn of the event loop.
        """
        served = self._served(model)
        submission = Submission(deadline, served.closed, label, self.now())
        submission.invalid = invalid
        submission.is_request = not are_copies
        try:
            submission.cache = self._place(served, submission, items, lag_s, foreseen=foreseen)
        except TorchlaneError:
            if submission.is_request:
                served.queue.metrics.count_failure(self.now() - submission.began)
            raise
        if submission.is_settled:
            count_outcomes(served.queue.metrics, submission, self.now())
        else:
            self._open.add(submission)
        return submission

    def expect(
        self, model: ModelId, deadline: float, ended: Callable[[], None], label: bytes = b""
    ) -> Submission:
        """Accept a request whose items are still being decoded.

        It waits until `supply` adds the items or `fail` of the submission ends it. Until then it
        expires at its deadline, a drain waits for it, and the model is not retired. `ended` is
        called if its wait ends before the items are added.
        """
        served = self._served(model)

        def closed(submission: Submission) -> None:
            self._expected.pop(submission, None)
            ended()
            self._closed(served.queue, submission)

        submission = Submission(deadline, closed, label, self.now())
        submission.expect()
        self._expected[submission] = served
        self._open.add(submission)
        return submission

    def supply(
        self,
        submission: Submission,
        items: Sequence[Item],
        deadline: float = math.inf,
        lag_s: float = 0.0,
        invalid: int = 0,
    ) -> None:
        """Accept or reject the items of an expected request, as `submit` does.

        Does nothing if its wait has ended. A deadline after the one given to `expect` is ignored.
        """
        served = self._expected.pop(submission, None)
        if served is None:
            return
        if deadline < submission.deadline:
            self._open.hasten(submission, deadline)
        submission.closed = served.closed
        submission.invalid = invalid
        try:
            submission.cache = self._place(served, submission, items, lag_s)
        except Exception as error:  # for the caller of `expect`, not of this method
            submission.keys.clear()  # rejected items are not counted
            submission.fail(error)
            return
        submission.complete()

    def _place(
        self,
        served: _Served,
        submission: Submission,
        items: Sequence[Item],
        lag_s: float,
        *,
        foreseen: bool = False,
    ) -> CacheCounts:
        """Find items in the cache and in flight, and look up or queue the rest; or reject all."""
        queue, keys, deadline = served.queue, submission.keys, submission.deadline
        flying: list[Ticket] = []
        fresh: list[Item] = []
        fresh_keys: list[bytes] = []
        seen: set[bytes] | None = None if len(items) == 1 else set()
        hit = 0
        for item in items:
            key = served.keys.key(item)
            keys.append(key)
            if seen is not None and key in submission.outcomes:
                hit += 1
                continue
            value = self._cache.get(key) if queue.caches else None
            if value is not None:
                submission.outcomes[key] = value
                hit += 1
                continue
            if seen is not None:
                if key in seen:
                    continue
                seen.add(key)
            flight = queue.flights.get(key)
            if flight is not None:
                flying.append(flight)
            else:
                fresh.append(item)
                fresh_keys.append(key)
        now = self.now()
        are_copies = not submission.is_request
        self._admission.admit(
            queue, fresh, deadline, lag_s, now, foreseen=foreseen, are_copies=are_copies
        )
        if queue.demand is not None and fresh:
            self._timeline.add(queue)  # unless it is there
        for flight in flying:
            self._join(queue, flight, submission)
        counts = cache_counts(hit, len(fresh), len(items))
        if fresh and self._launch(queue, fresh, fresh_keys, submission, now):
            queue.metrics.count_lookups(counts._replace(miss=0))  # misses are counted later
        else:
            queue.metrics.count_lookups(counts)
        return counts

    def _launch(
        self,
        queue: ModelQueue,
        fresh: Sequence[Item],
        keys: Sequence[bytes],
        submission: Submission,
        now: float,
    ) -> bool:
        """Open flights and queue the items, or look them up in the second cache first (True)."""
        lookups = self._lookups
        if lookups is not None and lookups.pays(queue, fresh, submission.deadline - now):
            for index, item in enumerate(fresh):
                lookups.ask(queue, _open(queue, keys[index], item, submission, now))
            return True
        for index, item in enumerate(fresh):
            queue.tickets.submit(_open(queue, keys[index], item, submission, now))
        self._dispatcher.poke()
        return False

    def submit_known(
        self, model: ModelId, keys: Sequence[bytes], deadline: float
    ) -> Submission | None:
        """Like `submit`, for keys of an answer that the caller has; None if not all are cached.

        Its outcomes have no arrays.
        """
        served = self._served(model)
        if not served.queue.caches:
            return None
        now = self.now()
        submission = Submission(deadline, served.closed, began=now)
        for key in keys:
            if not self._cache.touch(key):
                return None
            submission.outcomes[key] = NO_ARRAYS
        submission.keys.extend(keys)
        try:
            self._admission.admit(served.queue, (), deadline, 0.0, now)
        except TorchlaneError:
            served.queue.metrics.count_failure(0.0)
            raise
        submission.cache = cache_counts(len(keys), 0, len(keys))
        served.queue.metrics.count_lookups(submission.cache)
        count_outcomes(served.queue.metrics, submission, now)
        return submission

    def foresee(self, model: ModelId, deadline: float, lag_s: float) -> bool:
        """Reject a request before it is decoded, if not even one item would be in time.

        Returns:
            whether that was predicted: not if no model has work, where `submit` is enough.

        Raises:
            ModelNotFound, ModelNotReady, Overloaded, ShuttingDown: as in `submit`.
        """
        served = self._served(model)
        queue, now = served.queue, self.now()
        if self._dispatcher.has_nothing():
            return False
        if deadline <= now or (queue.demand is not None and queue.demand.is_cold):
            return False  # `submit` raises a better error
        try:  # the item's length is unknown: assume the shortest
            self._admission.foresee(queue, ONE_ITEM, deadline, lag_s, now)
        except TorchlaneError:
            queue.metrics.count_failure(0.0)
            raise
        return True

    def identity(self, model: ModelId) -> str:
        """The identity with which the model was published; empty if it is not published."""
        served = self._models.get(model)
        return served.keys.identity if served is not None else ""

    def can_run(self, model: ModelId) -> bool:
        """Whether a replica can run the model now, or the next request loads it."""
        if self._has_replica(model):
            return True
        served = self._models.get(model)
        demand = None if served is None else served.queue.demand
        return demand is not None and demand.is_cold and demand.may_load

    def _has_replica(self, model: ModelId) -> bool:
        for replica in self._replicas:  # noqa: SIM110  # `any` takes twice as long
            if replica.state is READY and model in replica.models:
                return True
        return False

    def publish(
        self,
        model: ModelId,
        identity: str,
        contract: Contract,
        batch_s: Mapping[str, BatchTimes] = NOT_MEASURED,
        limits: ModelLimits | None = None,
        demand: Demand | None = None,
    ) -> None:
        """Serve a model that the replicas have installed, or that is loaded on demand.

        Args:
            model: its name and version.
            identity: identifies its cached answers: the digest of its manifest, and the variant.
            contract: requirements on the results of its batches.
            batch_s: batch times by replica, measured before it serves. Of a pool the slowest
                count; a pool without any counts as the slowest of the others.
            limits: its own limits; None for those of the engine's configuration.
            demand: loads it on demand; None: the replicas have it.
        """
        limits = limits or self._config.limits
        metrics = self._metrics.model(model)
        tickets = TicketQueue(limits.queue_limit_items, limits.queue_limit_bytes)
        batches = limits.batches
        measured: dict[str, BatchTimes] = {}  # by kind of device
        for name, times in sorted(batch_s.items(), key=lambda each: _largest_s(each[1])):
            measured[self._kinds[name]] = times
        slowest = max(measured.values(), key=_largest_s, default={})
        costs = {
            pool.kind: BatchCost(batches.max_batch_size, measured.get(pool.kind, slowest))
            for pool in self._timeline.pools
        }
        queue = ModelQueue(
            model, tickets, batches, contract, metrics, costs, limits.caches, demand=demand
        )
        gauges = ModelGauges(
            waiting=lambda: tickets.waiting,
            queue_limit=lambda: tickets.limit_items,
            replicas=lambda: self._dispatcher.ready_replicas(model),
            waiting_bytes=lambda: tickets.waiting_bytes,
            queue_limit_bytes=lambda: tickets.limit_bytes,
            predicted_wait_s=lambda: self._timeline.wait_s(queue),
            cold=lambda: float(demand is not None and demand.is_cold),
        )
        self._metrics.add_model(model, gauges)
        served = self._models[model] = _Served(queue, KeyMaker(identity), self._closed)
        served.unmeasured = {kind for kind in costs if kind not in measured}
        if demand is None or not demand.is_cold:
            self._timeline.add(queue)

    def copy_to(self, model: ModelId, copies: Copies | None) -> None:
        """Offer what is computed of a published model from now on; None: to nobody."""
        served = self._models.get(model)
        if served is not None:
            served.queue.copies = copies

    @property
    def is_idle(self) -> bool:
        """Whether no item of any model waits or runs."""
        return self._dispatcher.has_nothing()

    def adjust(self, model: ModelId, limits: ModelLimits) -> None:
        """Change the limits of a published model; no batch is larger than one that was proved."""
        self._models[model].queue.adjust(limits)

    def measured(self, model: ModelId, replica: str, batch_s: BatchTimes) -> None:
        """Record the batch times of a published model on a replica that now has it.

        They count if no replica of its pool was measured before.

        Args:
            model: ignored if it is not published.
            replica: the name of the replica.
            batch_s: the measured times.
        """
        served, kind = self._models.get(model), self._kinds[replica]
        if served is not None and kind in served.unmeasured:
            served.unmeasured.discard(kind)
            served.queue.costs[kind] = BatchCost(served.queue.limits.max_batch_size, batch_s)

    def park(self, model: ModelId) -> None:
        """Leave a model out of every turn, which no request needs, until one does."""
        if self.is_unused(model):
            self._timeline.remove(model)

    def is_unused(self, model: ModelId) -> bool:
        """Whether no request for a model waits, runs or is being decoded, even if it is retired."""
        queue = self._timeline.queues.get(model)
        if queue is None:
            return True
        return queue.is_empty and all(each.queue is not queue for each in self._expected.values())

    def fail_waiting(self, model: ModelId, error: TorchlaneError) -> None:
        """Fail all requests that wait for a model, which could not be loaded."""
        queue = self._timeline.queues.get(model)  # also of a model that is being retired
        if queue is not None:
            for submission in queue.flights.waiters():
                submission.fail(error)

    async def retire(self, model: ModelId) -> None:
        """Stop serving a model: accept no new requests, and first answer those accepted.

        The deadlines of the waiting requests limit how long this takes.
        """
        served = self._models.pop(model, None)
        if served is None:
            return
        while not served.queue.is_empty or self._expects(served):  # noqa: ASYNC110  # seldom; an event would cost every batch
            await asyncio.sleep(RETIRE_LOOK_S)
        self._timeline.remove(model)
        self._admission.forget(model)
        if all(other.plain != model.plain for other in self._models):  # no other revision
            self._metrics.remove_model(model)

    def watch_faults(self, tell: Callable[[Replica, ReplicaError], None]) -> None:
        """Call `tell` when a replica breaks; the engine gives it no more work."""
        self._dispatcher.on_fault = tell

    def begin_drain(self) -> None:
        """Reject new work from now on."""
        self._draining = True

    async def drain(self, budget_s: float) -> bool:
        """Reject new work and finish accepted requests; requests left after the budget fail.

        Returns:
            whether all requests were answered in time.
        """
        self.begin_drain()
        try:
            async with asyncio.timeout(budget_s):
                await self._open.until_none()
        except TimeoutError:
            self._open.fail_all(ShuttingDown("the server stopped before the answer was ready"))
            return False
        return True

    def wake(self) -> None:
        """Use a replica that has become ready."""
        self._dispatcher.joined()

    def _expects(self, served: _Served) -> bool:
        return any(each is served for each in self._expected.values())

    def _closed(self, queue: ModelQueue, submission: Submission) -> None:
        """Finish a request that has all its outcomes, or whose wait has ended without them."""
        self._open.close(submission)
        if submission.error is not None:
            self._leave(queue, submission)
        count_outcomes(queue.metrics, submission, self.now())
        then, submission.then = submission.then, None  # it often holds the submission: a cycle
        if then is not None:
            try:
                then()
            except Exception:  # other callers of the same batch must still be notified
                LOG.exception("caller_not_told")

    def _served(self, model: ModelId) -> _Served:
        if self._draining and not self.takes_inner_calls:
            raise ShuttingDown("the server is shutting down; try another server")
        served = self._models.get(model)
        if served is None:
            raise ModelNotFound(f"model {model} is not loaded; GET /models lists loaded models")
        demand = served.queue.demand
        if self._has_replica(model) or (demand is not None and demand.is_cold):
            return served
        raise ModelNotReady(f"no replica of {model} is ready; try again shortly")

    def _join(self, queue: ModelQueue, flight: Ticket, submission: Submission) -> None:
        flight.waiters.add(submission)
        submission.expect()
        flight.abandoned = False
        queue.tickets.retime(flight, submission.deadline)

    def _leave(self, queue: ModelQueue, submission: Submission) -> None:
        """Leave all flights without an outcome; withdraw work that no other request waits for.

        Work that a replica has begun cannot be stopped: its flight stays open so that later
        requests may join it, and its answer goes to the cache.
        """
        for key in submission.keys:  # in order: they are next to each other in the queue
            if key in submission.outcomes:
                continue
            if submission.trace is not None:
                held = queue.flights.get(key)  # None: expired in the queue
                if held is None or held.state is not RUNNING:
                    submission.trace.left_queued = True
            flight = queue.flights.leave(key, submission)
            if flight is None:
                continue
            flight.abandoned = True
            if flight.state is WAITING or flight.state is ASKED:
                queue.tickets.withdraw(flight)
                queue.flights.close(flight)

    def settle(
        self,
        queue: ModelQueue,
        ticket: Ticket,
        outcome: Outcome | None,
        queue_s: float,
        compute_s: float,
        batch_items: int,
    ) -> None:
        """Pass an outcome to the cache and to all waiters; requests are settled only here."""
        ticket.state = DONE
        waiters = queue.flights.close(ticket)
        if outcome is None:  # the latest of its waiters' deadlines has passed
            for submission in waiters:
                submission.expire()
            return
        if not isinstance(outcome, ItemFailed):
            is_computed = batch_items > 0  # else it came from the second cache
            if queue.copies is not None and is_computed:
                queue.copies.offer(ticket.item, outcome)
            if queue.caches:
                self._cache.put(ticket.key, outcome)
                if self._lookups is not None and is_computed:
                    self._lookups.keep(queue, ticket, outcome)
        for submission in waiters:
            submission.settle(ticket.key, outcome, queue_s, compute_s, batch_items)


def _open(queue: ModelQueue, key: bytes, item: Item, submission: Submission, now: float) -> Ticket:
    """Open a flight for a key that has none."""
    deadline = submission.deadline
    ticket = Ticket(key, on_its_own(item), now, deadline, deadline)
    queue.flights.open(ticket, submission)
    submission.expect()
    return ticket


def _largest_s(batch_s: BatchTimes) -> float:
    return max((max(each.values(), default=0.0) for each in batch_s.values()), default=0.0)


def count_outcomes(metrics: ModelMetrics, submission: Submission, now: float) -> None:
    """Count a settled request and its items by outcome."""
    seconds = now - submission.began
    is_request = submission.is_request
    if submission.error is not None:
        if is_request:
            metrics.count_failure(seconds)
        if is_request and isinstance(submission.error, TorchlaneError):
            metrics.outcome(submission.error.code, len(submission.keys))
        return
    predicted = 0
    for key in submission.keys:
        outcome = submission.outcomes[key]
        if isinstance(outcome, ItemFailed):
            metrics.outcome(outcome.code)
        else:
            predicted += 1
    if submission.invalid:
        metrics.outcome(InvalidItem.code, submission.invalid)
    if is_request and (predicted < len(submission.keys) or submission.invalid):
        metrics.count_failure(seconds)
    elif is_request:
        computed = submission.batch_items > 0
        metrics.request(seconds, submission.queue_s, submission.compute_s, computed=computed)
    metrics.outcome("ok", predicted)
