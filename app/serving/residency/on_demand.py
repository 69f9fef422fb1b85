"""Loads models when requests need them, and removes others for them."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable

import structlog

from app.engine.engine import Engine
from app.errors import ModelNotReady, Overloaded
from app.metrics import Metrics
from app.registry.loaded_models import LoadedModels, ModelState, VersionStatus
from app.serving.installation import problem_of
from app.serving.replica_pool import ReplicaPool, log_failure
from app.serving.residency.load_records import LoadRecords
from app.serving.residency.model_memory import MIB, ModelMemory, OnDemandModel, Residency
from app.threads import in_thread
from app.types import ModelId
from models.system.heap import trim

LOG = structlog.get_logger(__name__)
LOOK_S = 1.0  # between two checks for idle models
AGAIN_S = 10.0  # before a load that failed is tried again


class OnDemandModels:
    """All models of this process that are loaded on demand. On the event loop.

    One load runs at a time: others in parallel would take as long together, and what each of them
    adds to the memory of the process could not be told.

    Args:
        memory: says which models fit.
        engine: has their queues.
        pool: has their replicas.
        loaded: shows their state.
        metrics: counts loads and removals.
        records: what loads took in earlier processes.
    """

    def __init__(
        self,
        memory: ModelMemory,
        engine: Engine,
        pool: ReplicaPool,
        loaded: LoadedModels,
        metrics: Metrics,
        records: LoadRecords,
    ) -> None:
        self._records = records
        self._memory = memory
        self._engine = engine
        self._pool = pool
        self._loaded = loaded
        self._metrics = metrics
        self._now = memory.now
        self._models = memory.models
        self._loads: dict[OnDemandModel, asyncio.Task[None]] = {}  # running or waiting, in order
        self._lock = asyncio.Lock()
        self._running: OnDemandModel | None = None  # the load that is running
        self._always: str | None = None  # the model of such a load, if it is always loaded
        self._began = 0.0  # when the running load began
        self._always_s: dict[str, float] = {}  # by model that is always loaded, of its last load
        self._mean_s = 0.0  # of loads
        self._watching: asyncio.Task[None] | None = None

    def add(
        self,
        model: ModelId,
        load: Callable[[], Awaitable[None]],
        file_bytes: int,
        idle_s: float | None,
        identity: str,
    ) -> OnDemandModel:
        """Load a version on demand from now on; see `OnDemandModel` for the arguments.

        `identity` is that of its record.
        """
        demand = OnDemandModel(self._memory, model, load, self._ask, file_bytes, idle_s)
        demand.identity = identity
        if (record := self._records.get(identity)) is not None:
            demand.recall(record)
        before = (each for each in self._models.values() if each.model.name == model.name)
        demand.uses = max((each.uses for each in before), default=0.0)  # it takes their place
        self._models[model] = demand
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
            self._watching.add_done_callback(log_failure)
        return demand

    def is_there(self, demand: OnDemandModel) -> None:
        """Record that a version on demand was loaded in `counted`."""
        demand.nbytes = self._memory.always.pop(demand.model)
        demand.first_s, demand.since = self._always_s[demand.model.name], self._now()
        demand.used_at, demand.is_cold = demand.since, False
        self._records.put(demand.identity, demand.record)

    def adjust(self, model: ModelId, idle_s: float | None) -> None:
        """Change after how many seconds a version is unloaded, if it is on demand."""
        if model in self._models:
            self._models[model].idle_s = idle_s

    async def remove(self, model: ModelId) -> None:
        """Forget a version that has been retired, or that is no longer always loaded."""
        self._memory.always.pop(model, None)
        demand = self._models.pop(model, None)
        if demand is not None and (load := self._loads.get(demand)) is not None:
            load.cancel()
            await asyncio.gather(load, return_exceptions=True)
            self._has_ended(demand)  # if it had not begun

    async def warm(self, model: ModelId) -> None:
        """Load a version, if it is on demand and cold, as for a request that needs it.

        Raises:
            Overloaded: if there is no room for it.
            ModelNotReady: if it cannot be loaded.
        """
        demand = self._models.get(model)
        if demand is None or not demand.is_cold:
            return
        self._ask(demand, math.inf, for_copies=False)
        demand.used()
        load = self._loads[demand]
        await asyncio.wait([load])
        if demand.is_cold and not load.cancelled():
            self._ask(demand, math.inf, for_copies=False)  # says why

    async def stop(self) -> None:
        """Cancel all loads."""
        tasks = [*self._loads.values(), *([self._watching] if self._watching else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._records.save(at_once=True)

    def works(self, model: ModelId) -> bool:
        """Whether a version is loaded on demand, and its last load did not fail."""
        demand = self._models.get(model)
        return demand is not None and demand.problem is None

    def has_room(self, model: ModelId) -> bool:
        """Whether a version is loaded, or could be now, or is not loaded on demand."""
        demand = self._models.get(model)
        return demand is None or self._memory.has_room(demand)

    def is_cold(self, model: ModelId) -> bool:
        """Whether a version is loaded on demand, and neither loaded nor being loaded."""
        demand = self._models.get(model)
        return demand is not None and demand.is_cold and not demand.is_coming

    def residency(self, model: ModelId) -> Residency:
        """What is known of a served version, with its revision."""
        demand = self._models.get(model)
        if demand is None:
            return Residency(self._memory.always.get(model))
        return Residency(
            None if demand.is_cold else demand.nbytes,
            self._now() - demand.used_at if demand.used_at else None,
            (self._left_s(demand) or None) if demand.is_coming else None,
        )

    @contextlib.asynccontextmanager
    async def counted(self, model: ModelId, file_bytes: int) -> AsyncIterator[None]:
        """Count the memory that a model takes which is always loaded, and is loaded inside.

        Args:
            model: the model.
            file_bytes: bytes of its weights.
        """
        async with self._lock:
            self._always, self._began = model.name, self._now()
            before = self._memory.resident()
            try:
                yield
                self._memory.count_always(model, before, file_bytes)
                known = {n: s for n, s in self._always_s.items() if n in self._loaded.names}
                self._always_s = {**known, model.name: self._now() - self._began}
            finally:
                self._always = None
            await self._make_room(None)

    def _ask(self, model: OnDemandModel, allowed_s: float, *, for_copies: bool) -> None:
        name = model.model.plain
        if model.has_just_failed:
            raise ModelNotReady(f"model {name} could not be loaded: {model.problem}")
        if not model.is_coming:
            model.is_for_copies = for_copies
            self._memory.check_room(model)
            model.is_coming = True
            self._loads[model] = task = asyncio.create_task(self._load(model))
            task.add_done_callback(log_failure)
        elif not for_copies:
            model.is_for_copies = False
        left_s = self._left_s(model)
        if left_s > allowed_s:
            raise Overloaded(
                f"model {name} is being loaded, which will take about {left_s:.1f} s, longer than "
                "the deadline allows; try again then, or allow more time",
                retry_after_s=left_s,
            )

    def _left_s(self, model: OnDemandModel) -> float:
        """Seconds until a model is expected to be loaded, after those that were asked for before.

        0 as long as nothing is known of any load.
        """
        ran_s = self._now() - self._began
        left_s = 0.0
        if self._always is not None:  # as long as the last version of that model
            left_s = max(0.0, self._always_s.get(self._always, 0.0) - ran_s)
        for each in self._loads:
            takes_s = each.load_s or self._mean_s
            if each is self._running:
                takes_s = max(0.0, takes_s - ran_s)
            left_s += takes_s
            if each is model:
                break
        return left_s

    async def _load(self, model: OnDemandModel) -> None:
        try:
            async with self._lock:
                self._running, self._began = model, self._now()
                await self._make_room(model)
                self._show(model, ModelState.LOADING)
                before = self._memory.resident()
                try:
                    await model.load()
                except BaseException:
                    await self._pool.remove_everywhere(model.model)
                    raise
                await in_thread(trim)
                self._is_loaded(model, before)
                if model.is_for_copies and self._memory.is_short:  # it takes more than its files
                    self._engine.fail_waiting(model.model, self._memory.no_room(model))
                self._engine.wake()
                self._has_ended(model)
                await self._make_room(None)  # the estimate may have been too low
        except Overloaded as error:
            self._engine.fail_waiting(model.model, error)
            self._engine.park(model.model)
        except Exception as error:
            self._failed(model, error)
        finally:
            self._has_ended(model)

    def _show(self, model: OnDemandModel, state: ModelState, problem: str | None = None) -> None:
        """Record a model's state, unless it is being retired."""
        served = self._loaded.find(model.model.plain)
        if served is not None and served.id == model.model:
            self._loaded.record(VersionStatus(model.model.plain, state, problem))

    def _has_ended(self, model: OnDemandModel) -> None:
        """Record that a model's load has ended, or was cancelled before it began."""
        self._loads.pop(model, None)
        model.is_coming = False
        if self._running is model:
            self._running = None

    def _is_loaded(self, model: OnDemandModel, before: int | None) -> None:
        """Record that a load has ended; `before`: bytes of the process when it began."""
        now = self._now()
        seconds = now - self._began
        self._memory.has_loaded(model, before, seconds)
        self._records.put(model.identity, model.record)
        model.since = model.used_at = now
        self._mean_s += (seconds - self._mean_s) * (0.1 if self._mean_s else 1.0)
        model.is_cold, model.problem = False, None
        self._show(model, ModelState.READY)
        self._metrics.count_load(model.model, "warmed")
        LOG.info(
            "model_warmed",
            model=str(model.model.plain),
            seconds=round(seconds, 2),
            mib=round(model.nbytes / MIB, 1),
        )

    def _failed(self, model: OnDemandModel, error: Exception) -> None:
        """Fail the requests that wait for a model, and try it again later."""
        problem = problem_of(error)
        model.problem, model.again_at = problem, self._now() + AGAIN_S
        name = model.model.plain
        self._show(model, ModelState.FAILED, problem)
        self._metrics.count_load(model.model, "failed")
        is_known = problem == str(error)
        LOG.error("model_not_warmed", model=str(name), problem=str(error), exc_info=not is_known)
        self._engine.fail_waiting(
            model.model, ModelNotReady(f"model {name} could not be loaded: {problem}")
        )
        self._engine.park(model.model)

    async def _make_room(self, model: OnDemandModel | None) -> None:
        """Remove the models that are worth least until all others fit.

        Args:
            model: the one that is about to be loaded, and is counted already; None: none.

        Raises:
            Overloaded: if it does not fit.
        """
        if model is not None:
            self._memory.check_room(model)  # much may have changed while it waited
        for_copies = model is not None and model.is_for_copies
        while self._memory.is_short:
            leaving = None if for_copies else self._memory.least_worth()
            if leaving is not None:
                await self._cool(leaving)
            elif model is not None:
                raise self._memory.no_room(model)
            else:
                return

    async def _cool(self, model: OnDemandModel) -> None:
        """Remove a model from its replicas; the next request loads it again."""
        model.is_cold = True  # at once: requests wait for a load from now on
        self._show(model, ModelState.COLD)
        self._engine.park(model.model)
        # Even if this load is cancelled: it is counted as cold.
        await asyncio.shield(self._pool.remove_everywhere(model.model))
        await in_thread(trim)
        self._metrics.count_load(model.model, "cooled")
        LOG.info("model_cooled", model=str(model.model.plain))

    async def _watch(self) -> None:
        """Remove models that nobody has used for as long as their settings say."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self._look()
                await self._records.save()
            except Exception:  # the next look may succeed
                LOG.exception("idle_models_not_unloaded")

    async def _look(self) -> None:
        for model in tuple(self._models.values()):
            if self._is_idle(model):
                async with self._lock:
                    if self._is_idle(model):
                        await self._cool(model)
        if self._memory.is_short and not self._lock.locked():
            async with self._lock:
                await self._make_room(None)

    def _is_idle(self, model: OnDemandModel) -> bool:
        if model.idle_s is None or self._now() < model.used_at + model.idle_s:
            return False
        return self._models.get(model.model) is model and self._memory.may_leave(model)
