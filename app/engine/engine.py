"""The engine: cache -> single-flight -> (second cache) -> queue -> replicas, for all models.

ARCHITECTURE.md lists the laws that it keeps, each with its test.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import structlog

from app.engine.admission.admission import Admission
from app.engine.admission.read_lag import ReadLag
from app.engine.cache import PredictionCache
from app.engine.clock import Clock
from app.engine.execution.batch_runner import Contract
from app.engine.execution.replica import Replica
from app.engine.keys import KeyMaker
from app.engine.lookups import Lookups
from app.engine.scheduling.batch_cost import BatchCost
from app.engine.scheduling.batch_policy import BatchLimits
from app.engine.scheduling.dispatcher import Dispatcher, Settler
from app.engine.scheduling.model_queue import ModelLimits, ModelQueue
from app.engine.scheduling.queue import (
    ASKED,
    DONE,
    ONE_ITEM,
    RUNNING,
    WAITING,
    Ticket,
    TicketQueue,
    on_its_own,
)
from app.engine.scheduling.timeline import Timeline
from app.engine.shared_tier import SharedTier
from app.engine.singleflight import Waiter
from app.engine.submission import Submission
from app.engine.waiters import OpenWaiters
from app.errors import (
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
from app.types import Answer, BatchTimes, CacheCounts, Item, ModelId, Outcome, cache_counts

LOG = structlog.get_logger(__name__)
RETIRE_LOOK_S = 0.01  # between two looks whether a model that leaves is done
NOT_MEASURED: Mapping[str, BatchTimes] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits of the engine; times in seconds.

    Attributes:
        batches: how the batches of a model are made, if it is published without limits of its own.
        queue_limit_items: items of it that may wait, if it has no limit of its own.
        queue_limit_bytes: bytes that those may have, if it has no limit of its own.
        cache_bytes: bound of the prediction cache; 0 turns it off.
        cache_ttl_s: how long a prediction is kept at most; None for ever.
        block_s: the event loop stands still for batches that take less: for replicas that compute
            on the only core that it has; 0 where they have cores of their own (docs/adr/0012).
    """

    batches: BatchLimits
    queue_limit_items: int
    cache_bytes: int
    cache_ttl_s: float | None
    block_s: float = 0.0
    queue_limit_bytes: int = 1 << 30

    @property
    def limits(self) -> ModelLimits:
        """Of a model without limits of its own."""
        return ModelLimits(self.batches, self.queue_limit_items, self.queue_limit_bytes)


class _Served:
    """What the engine keeps of a published model.

    Args:
        queue: of the model.
        keys: makes those of its items.
        closed: told of each request for it that has come to an end.
    """

    __slots__ = ("closed", "keys", "queue")

    def __init__(
        self, queue: ModelQueue, keys: KeyMaker, closed: Callable[[ModelQueue, Waiter], None]
    ) -> None:
        self.queue = queue
        self.keys = keys
        self.closed: Callable[[Waiter], None] = lambda waiter: closed(queue, waiter)


class Engine(Settler):
    """Predicts. Lives on one event loop; threads are the replicas' business.

    Args:
        replicas: where models are installed before they are published here.
        clock: the time that deadlines are given in.
        metrics: where to count.
        config: limits.
        tracing: told of each batch.
        tier: a second cache, shared with other servers.
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
        self._names = [replica.name for replica in replicas]
        self._clock = clock
        self._metrics = metrics
        self._config = config
        self._cache = PredictionCache(config.cache_bytes, config.cache_ttl_s, clock.now)
        metrics.cache_bytes.set_function(lambda: self._cache.used_bytes)
        metrics.cache_limit.set(config.cache_bytes)
        metrics.cache_entries.set_function(lambda: len(self._cache))
        self._timeline = Timeline(replicas, clock)
        self._dispatcher = Dispatcher(
            replicas, self._timeline, clock, self, metrics, config.block_s
        )
        if tracing is not None:
            self._dispatcher.tracing = tracing
        self._lookups: Lookups | None = None
        if tier is not None:
            self._lookups = Lookups(tier, clock, self, self._dispatcher.poke)
        self._admission = Admission(self._timeline)
        self._lag = ReadLag(clock, lambda: self._dispatcher.worked_at)
        self._models: dict[ModelId, _Served] = {}
        self._open = OpenWaiters(clock)
        self._expected: dict[Waiter, _Served] = {}  # whose items are still to come
        self._draining = False

    def now(self) -> float:
        """The present moment on the clock that deadlines are given in."""
        return self._clock.now()

    async def predict(self, model: ModelId, items: Sequence[Item], deadline: float) -> Answer:
        """One outcome per item, in order; equal items are computed once.

        Args:
            model: a published model.
            items: at least one.
            deadline: on the engine's clock.

        Raises:
            ModelNotFound, ModelNotReady, Overloaded, PayloadTooLarge, ShuttingDown: rejected;
                nothing was queued.
            DeadlineExceeded: the time is up.
        """
        return await self.submit(model, items, deadline).answer()

    def submit(
        self,
        model: ModelId,
        items: Sequence[Item],
        deadline: float,
        lag_s: float = 0.0,
        label: bytes = b"",
    ) -> Submission:
        """The first half of `predict`: accept the items or reject them, at once and as a whole.

        `lag_s` is what `read_lag_s` said when the request was read, `label` what the log is to call
        it if the model fails on an item.
        """
        served = self._served(model)
        waiter = Waiter(deadline, served.closed, label)
        counts = self._place(served, waiter, items, lag_s)
        if waiter.is_settled:
            count_outcomes(served.queue.metrics, waiter)
        else:
            self._open.add(waiter)
        return Submission(waiter, counts)

    def expect(
        self, model: ModelId, deadline: float, ended: Callable[[], None], label: bytes = b""
    ) -> Submission:
        """Accept a request whose items are still being decoded.

        It waits until `supply` brings the items or `fail` of the submission ends it. Until then it
        expires at its deadline, a drain waits for it, and the model stays. `ended` is called if its
        wait ends before the items come.
        """
        served = self._served(model)

        def closed(waiter: Waiter) -> None:
            self._expected.pop(waiter, None)
            ended()
            self._closed(served.queue, waiter)

        waiter = Waiter(deadline, closed, label)
        waiter.expect()
        self._expected[waiter] = served
        self._open.add(waiter)
        return Submission(waiter, CacheCounts())

    def supply(
        self,
        submission: Submission,
        items: Sequence[Item],
        deadline: float = math.inf,
        lag_s: float = 0.0,
    ) -> None:
        """The items of an expected request: accept or reject them as `submit` does.

        Nothing happens if its wait has ended. A deadline later than the one that `expect` was told
        changes nothing.
        """
        waiter = submission.waiter
        served = self._expected.pop(waiter, None)
        if served is None:
            return
        if deadline < waiter.deadline:
            self._open.hasten(waiter, deadline)
        waiter.settled = served.closed
        try:
            submission.cache = self._place(served, waiter, items, lag_s)
        except Exception as error:  # for the caller: what awaits the items cannot raise it
            waiter.keys.clear()  # rejected items are not counted
            waiter.fail(error)
            return
        waiter.complete()

    def _place(
        self, served: _Served, waiter: Waiter, items: Sequence[Item], lag_s: float
    ) -> CacheCounts:
        """Find items in the cache and in flight, and ask for or queue the rest; or reject all."""
        queue, keys, deadline = served.queue, waiter.keys, waiter.deadline
        flying: list[Ticket] = []
        fresh: list[Item] = []
        fresh_keys: list[bytes] = []
        seen: set[bytes] | None = None if len(items) == 1 else set()
        hit = 0
        for item in items:
            key = served.keys.key(item)
            keys.append(key)
            if seen is not None and key in waiter.outcomes:
                hit += 1
                continue
            value = self._cache.get(key) if queue.caches else None
            if value is not None:
                waiter.outcomes[key] = value
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
        now = self._clock.now()
        self._admission.admit(queue, fresh, deadline, lag_s, now)
        for flight in flying:
            self._join(queue, flight, waiter)
        counts = cache_counts(hit, len(fresh), len(items))
        if fresh and self._launch(queue, fresh, fresh_keys, waiter, now):
            queue.metrics.looked_up(counts._replace(miss=0))  # those are counted once it is known
        else:
            queue.metrics.looked_up(counts)
        return counts

    def _launch(
        self,
        queue: ModelQueue,
        fresh: Sequence[Item],
        keys: Sequence[bytes],
        waiter: Waiter,
        now: float,
    ) -> bool:
        """No flight computes these items yet: queue them, or ask the second cache first (True)."""
        lookups = self._lookups
        if lookups is not None and lookups.pays(queue, fresh, waiter.deadline - now):
            for index, item in enumerate(fresh):
                lookups.ask(queue, _open(queue, keys[index], item, waiter, now))
            return True
        for index, item in enumerate(fresh):
            queue.tickets.submit(_open(queue, keys[index], item, waiter, now))
        self._dispatcher.poke()
        return False

    def submit_known(
        self, model: ModelId, keys: Sequence[bytes], deadline: float
    ) -> Submission | None:
        """Like `submit`, for items with keys from an earlier request; None: not all are cached."""
        served = self._served(model)
        if not served.queue.caches:
            return None
        waiter = Waiter(deadline, served.closed)
        for key in keys:
            value = self._cache.get(key)
            if value is None:
                return None
            waiter.outcomes[key] = value
        waiter.keys.extend(keys)
        self._admission.admit(served.queue, (), deadline, 0.0, self._clock.now())
        counts = cache_counts(len(keys), 0, len(keys))
        served.queue.metrics.looked_up(counts)
        count_outcomes(served.queue.metrics, waiter)
        return Submission(waiter, counts)

    def read_lag_s(self) -> float:
        """Upper bound on the seconds that the bytes just read spent in the socket buffer."""
        return self._lag.seconds()

    def foresee(self, model: ModelId, deadline: float, lag_s: float) -> None:
        """Reject a request that has not been decoded yet, if not even one item would be in time.

        Raises:
            ModelNotFound, ModelNotReady, Overloaded, ShuttingDown: as `submit` would.
        """
        queue, now = self._served(model).queue, self._clock.now()
        if deadline > now:  # else `submit` has a better word for it
            # Its length is not known: assume the shortest.
            self._admission.foresee(queue, ONE_ITEM, deadline, lag_s, now)

    def identity(self, model: ModelId) -> str:
        """What its cached answers belong to, as it was published; empty: it was not."""
        served = self._models.get(model)
        return served.keys.identity if served is not None else ""

    def publish(
        self,
        model: ModelId,
        identity: str,
        contract: Contract,
        batch_s: Mapping[str, BatchTimes] = NOT_MEASURED,
        limits: ModelLimits | None = None,
    ) -> None:
        """Serve a model that the replicas have installed.

        Args:
            model: its name and version.
            identity: what its cached answers belong to: the digest of its manifest, and the
                variant.
            contract: what its batches must come to.
            batch_s: of each replica, as measured before it serves. One that does not
                have the model yet was not measured, and counts as the slowest.
            limits: of its own; None: those of the engine's configuration.
        """
        limits = limits or self._config.limits
        metrics = self._metrics.model(model)
        tickets = TicketQueue(limits.queue_limit_items, limits.queue_limit_bytes)
        batches = limits.batches
        slowest = max(batch_s.values(), key=_largest_s, default={})
        costs = {
            name: BatchCost(batches.max_batch_size, batch_s.get(name, slowest))
            for name in self._names
        }
        queue = ModelQueue(model, tickets, batches, contract, metrics, costs, limits.caches)
        gauges = ModelGauges(
            waiting=lambda: tickets.waiting,
            queue_limit=lambda: tickets.limit_items,
            replicas=lambda: self._dispatcher.ready_replicas(model),
            waiting_bytes=lambda: tickets.waiting_bytes,
            queue_limit_bytes=lambda: tickets.limit_bytes,
            predicted_wait_s=lambda: self._timeline.wait_s(queue),
        )
        self._metrics.served(model, gauges)
        self._models[model] = _Served(queue, KeyMaker(identity), self._closed)
        self._dispatcher.add(queue)

    def adjust(self, model: ModelId, limits: ModelLimits) -> None:
        """Let other limits hold for a published model, of which the largest batch is the same."""
        self._models[model].queue.adjust(limits)

    def measured(self, model: ModelId, replica: str, batch_s: BatchTimes) -> None:
        """A replica has got a model that is published, and this is how long its batches take.

        Args:
            model: harmless where it is not published.
            replica: its name.
            batch_s: as measured.
        """
        served = self._models.get(model)
        if served is not None:
            largest = served.queue.limits.max_batch_size
            served.queue.costs[replica] = BatchCost(largest, batch_s)

    async def retire(self, model: ModelId) -> None:
        """Serve a model no more: nothing new from now on; what was accepted is answered first.

        The deadlines of the waiting requests bound how long that takes.
        """
        served = self._models.pop(model, None)
        if served is None:
            return
        while not served.queue.is_empty or self._expects(served):  # noqa: ASYNC110  # seldom; an event would cost every batch
            await asyncio.sleep(RETIRE_LOOK_S)
        self._dispatcher.remove(served.queue)
        self._admission.forget(model)
        if all(other.plain != model.plain for other in self._models):  # no revision of it is left
            self._metrics.retired(model)

    def watch_faults(self, tell: Callable[[Replica, ReplicaError], None]) -> None:
        """Call `tell` when a replica has broken; the engine gives it no more work."""
        self._dispatcher.on_fault = tell

    def begin_drain(self) -> None:
        """Reject new work from now on."""
        self._draining = True

    async def drain(self, budget_s: float) -> bool:
        """Reject new work and finish what was accepted; what is left after the budget fails.

        Returns:
            whether everything was answered in time.
        """
        self.begin_drain()
        try:
            async with asyncio.timeout(budget_s):
                await self._open.until_none()
        except TimeoutError:
            self._open.fail_all(ShuttingDown("the server stopped before the answer was there"))
            return False
        return True

    def wake(self) -> None:
        """A replica has become ready."""
        self._dispatcher.joined()

    def _expects(self, served: _Served) -> bool:
        return any(each is served for each in self._expected.values())

    def _closed(self, queue: ModelQueue, waiter: Waiter) -> None:
        """A request has all its outcomes, or its wait has ended without."""
        self._open.close(waiter)
        if waiter.error is not None:
            self._leave(queue, waiter)
        count_outcomes(queue.metrics, waiter)
        then, waiter.then = waiter.then, None  # what it holds often holds the waiter: no circle
        if then is not None:
            try:
                then()
            except Exception:  # the callers of its batch-mates are still to be told
                LOG.exception("caller_not_told")

    def _served(self, model: ModelId) -> _Served:
        if self._draining:
            raise ShuttingDown("the server is shutting down; ask another one")
        served = self._models.get(model)
        if served is None:
            raise ModelNotFound(f"model {model} is not loaded; GET /models lists what is")
        if not self._dispatcher.serves(model):
            raise ModelNotReady(f"no replica of {model} is ready; try again shortly")
        return served

    def _join(self, queue: ModelQueue, flight: Ticket, waiter: Waiter) -> None:
        flight.waiters.add(waiter)
        waiter.expect()
        flight.abandoned = False
        queue.tickets.retime(flight, waiter.deadline)

    def _leave(self, queue: ModelQueue, waiter: Waiter) -> None:
        """Give up what has no outcome yet; work that no other request waits for leaves the queue.

        Work that a replica has begun cannot be stopped: its flight stays in the air, so that the
        next caller may join it, and its answer goes to the cache.
        """
        for key in waiter.keys:  # in order: they are next to each other in the queue
            if key in waiter.outcomes:
                continue
            if waiter.trace is not None:
                held = queue.flights.get(key)  # None: expired in the queue
                if held is None or held.state is not RUNNING:
                    waiter.trace.left_queued = True
            flight = queue.flights.leave(key, waiter)
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
        """The one place where requests are settled: an outcome to the cache and to all waiters."""
        ticket.state = DONE
        waiters = queue.flights.close(ticket)
        if outcome is None:  # it expired with the latest of its waiters' deadlines
            for waiter in waiters:
                waiter.expire()
            return
        if not isinstance(outcome, ItemFailed) and queue.caches:
            self._cache.put(ticket.key, outcome)
            if self._lookups is not None and batch_items:  # what was found there is there
                self._lookups.keep(queue, ticket, outcome)
        for waiter in waiters:
            waiter.settle(ticket.key, outcome, queue_s, compute_s, batch_items)


def _open(queue: ModelQueue, key: bytes, item: Item, waiter: Waiter, now: float) -> Ticket:
    """No flight computes this key yet: open one."""
    deadline = waiter.deadline
    ticket = Ticket(key, on_its_own(item), now, deadline, deadline)
    queue.flights.open(ticket, waiter)
    waiter.expect()
    return ticket


def _largest_s(batch_s: BatchTimes) -> float:
    return max((max(each.values(), default=0.0) for each in batch_s.values()), default=0.0)


def count_outcomes(metrics: ModelMetrics, waiter: Waiter) -> None:
    """Count a settled request's items by what became of them."""
    if waiter.error is not None:
        if isinstance(waiter.error, TorchlaneError):
            metrics.outcome(waiter.error.code, len(waiter.keys))
        return
    predicted = 0
    for key in waiter.keys:
        outcome = waiter.outcomes[key]
        if isinstance(outcome, ItemFailed):
            metrics.outcome(outcome.code)
        else:
            predicted += 1
    metrics.outcome("ok", predicted)
