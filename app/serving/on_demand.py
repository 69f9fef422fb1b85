"""Loads models when requests need them, and removes those that pay least, within a budget.

What a loaded model is worth: its rate of use, times the seconds that a load takes, by its bytes.
docs/adr/0039-models-on-demand.md compares this with other rules.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import structlog

from app.engine.engine import Engine
from app.errors import ModelNotReady, Overloaded
from app.metrics import Metrics
from app.registry.loaded_models import LoadedModels, ModelState, VersionStatus
from app.serving.installation import problem_of
from app.serving.replica_pool import ReplicaPool, log_failure
from app.threads import in_thread
from app.types import ModelId
from models.heap import trim
from models.resources import resident_bytes

LOG = structlog.get_logger(__name__)
LOOK_S = 1.0  # between two checks for idle models
AGAIN_S = 10.0  # before a load that failed is tried again
LEAST_RETRY_S = 1.0
# A load into memory that was freed before adds less to the process than the model takes.
REMEMBERED = 0.9  # of the figure of the last load: the least that counts
HALF_LIFE = 8  # after so many uses per model, a use counts half
MOST_WEIGHT = 1e100  # before all counts of uses are scaled down
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """How much memory models may take.

    Attributes:
        budget_bytes: maximum for the models of this process.
        min_resident_s: a model that was loaded stays for at least this long.
    """

    budget_bytes: int
    min_resident_s: float


class OnDemandModel:
    """A version that is loaded on demand; see `Demand`.

    Args:
        models: all of them.
        model: its name, version and revision.
        load: loads it onto its replicas, from files that are checked.
        file_bytes: bytes of its weights: the least memory that it takes.
        idle_s: seconds without use after which it is removed; None: only for others.

    Attributes:
        nbytes: memory that it takes; before the first load `file_bytes`.
        load_s: seconds that its last load took; 0 before the first one.
        uses: its requests, the older the less they count; in the current weight of `models`.
        used_at: moment of its last use.
        since: when it was last loaded.
        problem: why the last load failed; None: it did not.
        again_at: when a load that failed may be tried again.
    """

    def __init__(
        self,
        models: OnDemandModels,
        model: ModelId,
        load: Callable[[], Awaitable[None]],
        file_bytes: int,
        idle_s: float | None,
    ) -> None:
        self._models = models
        self.model = model
        self.load = load
        self.idle_s = idle_s
        self.is_cold = True
        self.file_bytes = self.nbytes = file_bytes
        self.load_s = self.uses = self.used_at = self.since = self.again_at = 0.0
        self.problem: str | None = None

    def used(self) -> None:
        """See `Demand`."""
        self._models.used(self)

    def ask(self, allowed_s: float) -> None:
        """See `Demand`."""
        self._models.ask(self, allowed_s)

    @property
    def worth(self) -> float:
        """What keeping it saves, by its bytes."""
        return self.uses * self.load_s / max(1, self.nbytes)


class OnDemandModels:
    """All models of this process that are loaded on demand. On the event loop.

    One load runs at a time: others in parallel would take as long together, and what each of them
    adds to the memory of the process could not be told.

    Args:
        limits: for their memory, and that of models which are always loaded.
        engine: has their queues.
        pool: has their replicas.
        loaded: shows their state.
        metrics: counts loads and removals.
        now: the clock.
        resident: returns the memory of the process in bytes; None if it cannot be told.
    """

    def __init__(
        self,
        limits: MemoryLimits,
        engine: Engine,
        pool: ReplicaPool,
        loaded: LoadedModels,
        metrics: Metrics,
        *,
        now: Callable[[], float] = time.monotonic,
        resident: Callable[[], int | None] = resident_bytes,
    ) -> None:
        self._limits = limits
        self._engine = engine
        self._pool = pool
        self._loaded = loaded
        self._metrics = metrics
        self._now = now
        self._resident = resident
        self._models: dict[ModelId, OnDemandModel] = {}
        self._always: dict[ModelId, int] = {}  # bytes of models that are always loaded
        self._loads: dict[OnDemandModel, asyncio.Task[None]] = {}  # running or waiting, in order
        self._lock = asyncio.Lock()
        self._running: OnDemandModel | None = None  # the load that is running
        self._began = 0.0  # when it began
        self._weight = 1.0  # of a use now
        self._mean_s = 0.0  # of loads
        self._watching: asyncio.Task[None] | None = None
        metrics.model_memory.set_function(self._taken)
        metrics.model_memory_limit.set(limits.budget_bytes)

    def add(
        self,
        model: ModelId,
        load: Callable[[], Awaitable[None]],
        file_bytes: int,
        idle_s: float | None,
    ) -> OnDemandModel:
        """Load a version on demand from now on; see `OnDemandModel` for the arguments."""
        demand = OnDemandModel(self, model, load, file_bytes, idle_s)
        before = next((m for m in self._models.values() if m.model.plain == model.plain), None)
        if before is not None:  # an earlier revision, which is about to be retired
            demand.uses = before.uses
        self._models[model] = demand
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
            self._watching.add_done_callback(log_failure)
        return demand

    async def remove(self, model: ModelId) -> None:
        """Forget a version that has been retired, or that is no longer always loaded."""
        self._always.pop(model, None)
        demand = self._models.pop(model, None)
        if demand is not None and (load := self._loads.get(demand)) is not None:
            load.cancel()
            await asyncio.gather(load, return_exceptions=True)
            self._loads.pop(demand, None)  # if it had not begun

    async def stop(self) -> None:
        """Cancel all loads."""
        tasks = [*self._loads.values(), *([self._watching] if self._watching else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def works(self, model: ModelId) -> bool:
        """Whether a version is loaded on demand, and its last load did not fail."""
        demand = self._models.get(model)
        return demand is not None and demand.problem is None

    def is_cold(self, model: ModelId) -> bool:
        """Whether a version is loaded on demand, and neither loaded nor being loaded."""
        demand = self._models.get(model)
        return demand is not None and demand.is_cold and demand not in self._loads

    @contextlib.asynccontextmanager
    async def counted(self, model: ModelId) -> AsyncIterator[None]:
        """Count the memory that a model takes which is always loaded, and is loaded inside."""
        async with self._lock:
            before = self._resident()
            yield
            self._always[model] = self._grown(before)

    # What the engine calls.

    def used(self, model: OnDemandModel) -> None:
        """Count a use of a model; later uses weigh more."""
        model.uses += self._weight
        model.used_at = self._now()
        self._weight *= 2.0 ** (1 / (HALF_LIFE * len(self._models)))
        if self._weight > MOST_WEIGHT:
            for each in self._models.values():
                each.uses /= self._weight
            self._weight = 1.0

    def ask(self, model: OnDemandModel, allowed_s: float) -> None:
        """See `Demand.ask`."""
        name = model.model.plain
        if model.problem is not None and self._now() < model.again_at:
            raise ModelNotReady(f"model {name} could not be loaded: {model.problem}")
        if model not in self._loads:
            self._check_room(model)
            self._loads[model] = task = asyncio.create_task(self._load(model))
            task.add_done_callback(log_failure)
        left_s = self._left_s(model)
        if left_s > allowed_s:
            raise Overloaded(
                f"model {name} is being loaded, which will take about {left_s:.1f} s, longer than "
                "the deadline allows; try again then, or allow more time",
                retry_after_s=left_s,
            )

    # Room.

    def _taken(self) -> int:
        """Bytes of all models that are loaded or being loaded."""
        here = (m.nbytes for m in self._models.values() if not m.is_cold or m in self._loads)
        return sum(self._always.values()) + sum(here)

    def _may_leave(self, model: OnDemandModel) -> bool:
        """Whether a model could be removed now."""
        stays_until = model.since + self._limits.min_resident_s
        is_unused = self._engine.is_unused(model.model)
        return not model.is_cold and is_unused and self._now() >= stays_until

    def _check_room(self, model: OnDemandModel) -> None:
        """Return if a model would fit once others are removed that may be.

        Raises:
            ModelNotReady: if it never fits.
            Overloaded: if it does not fit now.
        """
        budget, always = self._limits.budget_bytes, sum(self._always.values())
        if always + model.nbytes > budget:
            self._metrics.cold_refused.inc()
            raise ModelNotReady(
                f"model {model.model.plain} takes about {model.nbytes / MIB:,.0f} MiB, and models "
                f"that are always loaded {always / MIB:,.0f} MiB; TORCHLANE_MODEL_MEMORY allows "
                f"{budget / MIB:,.0f} MiB in each process"
            )
        leaving = sum(each.nbytes for each in self._models.values() if self._may_leave(each))
        if self._taken() + model.nbytes - leaving > budget:
            raise self._no_room(model)

    def _no_room(self, model: OnDemandModel) -> Overloaded:
        self._metrics.cold_refused.inc()
        return Overloaded(
            f"there is no room for model {model.model.plain} now: the other loaded models are in "
            f"use, or were loaded less than {self._limits.min_resident_s:g} s ago",
            retry_after_s=self._room_in_s(),
        )

    def _room_in_s(self) -> float:
        """Seconds until the next loaded model may be removed, as far as is known."""
        now, least_s = self._now(), self._limits.min_resident_s
        stays = [m.since + least_s - now for m in self._models.values() if not m.is_cold]
        return max(LEAST_RETRY_S, min((each for each in stays if each > 0), default=0.0))

    def _left_s(self, model: OnDemandModel) -> float:
        """Seconds until a model is expected to be loaded, after those that were asked for before.

        0 as long as no model has been loaded.
        """
        left_s = 0.0
        for each in self._loads:
            takes_s = each.load_s or self._mean_s
            if each is self._running:
                takes_s = max(0.0, takes_s - (self._now() - self._began))
            left_s += takes_s
            if each is model:
                break
        return left_s

    # Loading and removing.

    async def _load(self, model: OnDemandModel) -> None:
        try:
            async with self._lock:
                self._running, self._began = model, self._now()
                await self._make_room(model)
                self._show(model, ModelState.LOADING)
                before = self._resident()
                try:
                    await model.load()
                except BaseException:
                    await self._pool.remove_everywhere(model.model)
                    raise
                await in_thread(trim, _discard)
                least = max(model.file_bytes, REMEMBERED * model.nbytes)
                model.nbytes = max(self._grown(before), int(least))
                self._is_loaded(model)
                await self._make_room(None)  # the estimate may have been too low
        except Overloaded as error:
            self._engine.fail_waiting(model.model, error)
        except Exception as error:
            self._failed(model, error)
        finally:
            self._loads.pop(model, None)
            if self._running is model:
                self._running = None

    def _show(self, model: OnDemandModel, state: ModelState, problem: str | None = None) -> None:
        """Record a model's state, unless it is being retired."""
        served = self._loaded.find(model.model.plain)
        if served is not None and served.id == model.model:
            self._loaded.record(VersionStatus(model.model.plain, state, problem))

    def _grown(self, before: int | None) -> int:
        """By how many bytes the process has grown."""
        now = self._resident()
        return 0 if now is None or before is None else max(0, now - before)

    def _is_loaded(self, model: OnDemandModel) -> None:
        now = self._now()
        model.load_s, model.since, model.used_at = now - self._began, now, now
        self._mean_s += (model.load_s - self._mean_s) * (0.1 if self._mean_s else 1.0)
        model.is_cold, model.problem = False, None
        self._show(model, ModelState.READY)
        self._metrics.count_load(model.model, "warmed")
        LOG.info(
            "model_warmed",
            model=str(model.model.plain),
            seconds=round(model.load_s, 2),
            mib=round(model.nbytes / MIB, 1),
        )
        self._engine.wake()

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

    async def _make_room(self, model: OnDemandModel | None) -> None:
        """Remove the models that are worth least until all others fit.

        Args:
            model: the one that is about to be loaded, and is counted already; None: none.

        Raises:
            Overloaded: if it does not fit.
        """
        while self._taken() > self._limits.budget_bytes:
            victims = [each for each in self._models.values() if self._may_leave(each)]
            if not victims:
                if model is not None:
                    raise self._no_room(model)
                return
            await self._cool(min(victims, key=lambda each: each.worth))

    async def _cool(self, model: OnDemandModel) -> None:
        """Remove a model from its replicas; the next request loads it again."""
        model.is_cold = True  # at once: requests wait for a load from now on
        self._show(model, ModelState.COLD)
        await self._pool.remove_everywhere(model.model)
        await in_thread(trim, _discard)
        self._metrics.count_load(model.model, "cooled")
        LOG.info("model_cooled", model=str(model.model.plain))

    async def _watch(self) -> None:
        """Remove models that nobody has used for as long as their settings say."""
        while True:
            await asyncio.sleep(LOOK_S)
            for model in tuple(self._models.values()):
                if self._is_idle(model):
                    async with self._lock:
                        if self._is_idle(model):
                            await self._cool(model)

    def _is_idle(self, model: OnDemandModel) -> bool:
        if model.idle_s is None or self._now() < model.used_at + model.idle_s:
            return False
        return self._models.get(model.model) is model and self._may_leave(model)


def _discard(_: object) -> None:
    """Nothing is left of a trim."""
