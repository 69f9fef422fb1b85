"""Discover -> verify -> load -> replay -> warm -> publish -> retire: owns what is loaded, and how.

It goes on as long as the process lives: new versions are loaded beside those that serve, take their
place in one step, and only then do the old ones leave. `rollout.py` does that for one model.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from app.engine.engine import Engine
from app.engine.execution.handover import in_thread
from app.engine.execution.replica import Replica, ReplicaState
from app.errors import DeviceLost, ModelNotFound, ShuttingDown
from app.registry.loaded_models import (
    LoadedModels,
    ReplicaStatus,
    listed,
)
from app.registry.readiness import Readiness, Requirements
from app.registry.repository import Repository
from app.serving.installer import Installer
from app.serving.models_file import ModelsFile
from app.serving.overrides import ALL, Override, Overrides
from app.serving.replica_pool import ReplicaPool, log_failure
from app.serving.rollout import Changes, Rollout
from app.serving.version_policy import VersionPolicy
from app.types import ModelId

LOG = structlog.get_logger(__name__)
CLOSE_PATIENCE_S = 5.0  # at most, for a replica that is still in native code when the process ends
MIN_CLOSE_S = 0.1  # at least, when the budget is spent
OVERRIDES_LOOK_S = 1.0  # how often a process looks for what was asked of another one


@dataclass(frozen=True, slots=True)
class LifecycleConfig:
    """How what is loaded is kept up.

    Attributes:
        policy: which versions to serve.
        overrides: what an administrator asks for beside it.
        models: settings of single models.
        required: models without which the process is not ready; None: as `models` says.
        reload_s: seconds between two looks at the repository; 0: only when asked.
        on_loaded: told when what was there at the start has been loaded, well or badly.
        on_retired: told when versions have left, in a thread: their memory can be given back.
        on_device_lost: told when a device is lost to the whole process, after its items are
            settled.
    """

    policy: VersionPolicy
    overrides: Overrides
    models: ModelsFile
    required: Sequence[str] | None
    reload_s: float
    on_loaded: Callable[[], None]
    on_retired: Callable[[], None]
    on_device_lost: Callable[[DeviceLost], None]


class Lifecycle:
    """Serves the versions that the policy wants of every model in the repository.

    Args:
        repository: what there is on disk.
        engine: what serves.
        pool: the replicas, and what is installed on them.
        installer: loads and retires one version.
        loaded: where it is recorded what is loaded.
        config: how to keep it up.
    """

    def __init__(
        self,
        repository: Repository,
        engine: Engine,
        pool: ReplicaPool,
        installer: Installer,
        loaded: LoadedModels,
        config: LifecycleConfig,
    ) -> None:
        self._repository = repository
        self._engine = engine
        self._pool = pool
        self._replicas = pool.replicas
        self._installer = installer
        self.loaded = loaded
        required = config.models.required if config.required is None else config.required
        self.requirements = Requirements(loaded, required)
        self._config = config
        self.device_lost = False
        self._stop_by: float | None = None  # moment of time.monotonic
        self._looking = asyncio.Lock()  # one change at a time
        self._reading = asyncio.Lock()  # of the models file
        self._settled = False  # has all been tried that was there at the start?
        self._heard = 0  # how often something had been asked for when the last look began
        self._rollout = Rollout(
            repository, installer, loaded, policy=config.policy, settings=config.models.of
        )
        self._keeping: asyncio.Task[None] | None = None
        self._minding: asyncio.Task[None] | None = None
        self._obeying: set[asyncio.Task[Changes]] = set()

    async def start(self) -> None:
        """Start the replicas, and loading in the background."""
        self._engine.watch_faults(self._pool.replica_failed)
        self._pool.start(self._give_up)
        self._keeping = asyncio.create_task(self._keep_up())
        self._keeping.add_done_callback(log_failure)
        self._minding = asyncio.create_task(self._mind_settings())
        self._minding.add_done_callback(log_failure)

    def begin_drain(self, budget_s: float) -> None:
        """Not ready and no new work from now on; the budget of the whole stop starts to run.

        Only the first call counts.
        """
        if self._stop_by is None:
            self._stop_by = time.monotonic() + budget_s
            self._engine.begin_drain()
            for task in self._working():
                task.cancel()  # nothing is loaded any more

    @property
    def stopping(self) -> bool:
        """Whether a stop has begun."""
        return self._stop_by is not None

    def stop_left_s(self) -> float:
        """Seconds that are left of the budget of a stop that has begun."""
        return 0.0 if self._stop_by is None else max(0.0, self._stop_by - time.monotonic())

    async def drain(self, budget_s: float) -> None:
        """Finish what was accepted; what is left after the budget gets ShuttingDown."""
        self.begin_drain(budget_s)
        if not await self._engine.drain(budget_s):
            LOG.error("drain_incomplete", budget_s=budget_s)

    async def stop(self, budget_s: float) -> None:
        """Drain, then close every backend and end the replicas' threads."""
        self.begin_drain(budget_s)
        await self.drain(self.stop_left_s())
        working = self._working()
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        await self._pool.stop()
        patience_s = max(MIN_CLOSE_S, min(CLOSE_PATIENCE_S, self.stop_left_s()))
        closed = await asyncio.gather(*(each.close(patience_s) for each in self._replicas))
        for replica, ended in zip(self._replicas, closed, strict=True):
            if not ended:
                LOG.error("replica_stuck", replica=replica.name, patience_s=patience_s)

    def _working(self) -> list[asyncio.Task[Any]]:
        tasks = (*self._obeying, self._keeping, self._minding)
        return [task for task in tasks if task is not None]

    def readiness(self) -> Readiness:
        """Ready: not draining, and what is required answers; if nothing is, all was tried once."""
        if self.stopping:
            return Readiness(False, ("the server is shutting down",))
        readiness = self.requirements.readiness(self._works)
        if self._settled or (self._config.required and self.requirements.name_any):
            return readiness
        return readiness.but(f"models are being loaded: {listed(self.problems())}")

    def problems(self) -> dict[str, str]:
        """Models that should answer and do not, by name, and why."""
        return self.requirements.problems(self._works)

    def _works(self, model: ModelId) -> bool:
        return any(replica.serves(model) for replica in self._replicas)

    def replica_states(self, model: ModelId | None) -> tuple[ReplicaStatus, ...]:
        """Replicas that it is for: `loading` while one works but lacks it; else what each runs."""
        return tuple(
            ReplicaStatus(
                replica.name,
                replica.device,
                _state(replica, model),
                replica.models.get(model) if model is not None else None,
            )
            for replica in self._pool.hosts(model)
        )

    async def reload(self) -> Changes:
        """Look at the repository now; what could not be loaded before is tried again."""
        return await self._obey(self._config.overrides.reload())

    async def load(self, name: str, version: int | None = None) -> Changes:
        """Serve a version beside what the policy says; without one, what it says.

        Raises:
            ModelNotFound: if the repository has no such version.
        """
        await self._check_there(name, version)
        return await self._obey(self._config.overrides.load(ModelId(name, version or ALL)))

    async def unload(self, name: str, version: int | None = None) -> Changes:
        """Serve a version no more, or none of a model, until it is asked for again.

        Of the other versions the policy's next one takes its place first.

        Raises:
            ModelNotFound: if the repository has no such version, and it is not served.
        """
        await self._check_there(name, version)
        return await self._obey(self._config.overrides.unload(ModelId(name, version or ALL)))

    async def _check_there(self, name: str, version: int | None) -> None:
        on_disk = (await in_thread(self._repository.versions, _let_go)).get(name, [])
        numbers = {*on_disk, *(model.version for model in self.loaded.versions(name))}
        if not numbers:
            raise ModelNotFound(f"there is no model {name!r} in the repository")
        if version is not None and version not in numbers:
            found = ", ".join(str(number) for number in sorted(numbers))
            raise ModelNotFound(f"there is no version {version} of {name!r}; there are: {found}")

    async def _obey(self, override: Override) -> Changes:
        if self.stopping:
            raise ShuttingDown("the server is shutting down; ask another one")
        # A task of its own: who asked may go away, and half a change would be none.
        task = asyncio.create_task(self._look(override, again=True))
        self._obeying.add(task)
        task.add_done_callback(self._obeying.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                raise  # who asked has gone; it goes on
            raise ShuttingDown("the server is shutting down; ask another one") from None

    async def _keep_up(self) -> None:
        overrides = self._config.overrides
        await self._look(overrides.now())
        self._settled = True
        self._config.on_loaded()
        readiness = self.readiness()
        if readiness.ready:
            loaded = [str(model.id) for model in self.loaded.models()]
            LOG.info("ready", models=loaded, unready=list(self.problems()))
        else:
            LOG.error("not_ready", reasons=list(readiness.reasons))
            if not self.loaded.names:
                problem = self._repository.why_empty()
                LOG.error("repository_empty", problem=problem, setting="TORCHLANE_MODEL_DIR")
        pause_s = self._config.reload_s
        if overrides.are_shared:
            pause_s = min(pause_s or OVERRIDES_LOOK_S, OVERRIDES_LOOK_S)
        looked_at = time.monotonic()
        while pause_s > 0 and not self.stopping:
            await asyncio.sleep(pause_s)
            try:
                override = overrides.now()
                again = override.asked > self._heard
                if again or 0 < self._config.reload_s <= time.monotonic() - looked_at:
                    looked_at = time.monotonic()
                    await self._look(override, again=again)
            except Exception:  # what is served goes on, and the next look may succeed
                LOG.exception("look_failed")

    async def _look(self, override: Override, *, again: bool = False) -> Changes:
        """Compare what is served with what should be, and change it.

        Args:
            override: what was asked for beside the policy.
            again: try once more what could not be loaded.
        """
        changes = Changes()
        await self._take_settings()  # what takes no load waits for no load
        async with self._looking:
            self._heard = max(self._heard, override.asked)
            try:
                found = await in_thread(self._repository.versions, _let_go)
            except OSError as error:
                LOG.error("repository_unreadable", error=str(error))
                self.loaded.unreadable()
                return changes
            if again:
                self._rollout.forget_failures()
            self._discovered(found, override)
            for name in (*found, *(name for name in self.loaded.names if name not in found)):
                if not self.stopping:
                    await self._rollout.bring_up(name, found.get(name, []), override, changes)
        if changes.retired:
            await in_thread(self._config.on_retired, _let_go)
        return changes

    async def _mind_settings(self) -> None:
        """Look at the models file also while a version is being loaded, which may take minutes."""
        while self._config.reload_s > 0 and not self.stopping:
            await asyncio.sleep(self._config.reload_s)
            try:
                await self._take_settings()
            except Exception:  # as in `_keep_up`
                LOG.exception("look_failed")

    async def _take_settings(self) -> None:
        """Take over what the models file says, as far as that takes no load."""
        async with self._reading:
            await in_thread(self._config.models.look, _let_go)
        if self._config.required is None:
            self.requirements.change(self._config.models.required)
        for model in self.loaded.models():
            settings = self._config.models.of(model.id.name)
            self._installer.adjust(model, settings, self.loaded)

    def _discovered(self, found: Mapping[str, Sequence[int]], override: Override) -> None:
        """Note which models there are, and which one is the default."""
        before = self.loaded.names
        newest = (ModelId(name, numbers[0]) for name, numbers in found.items())
        self.loaded.discovered(newest, override.default)
        self.requirements.discovered()
        default = self.loaded.default_model
        if default != override.default:
            self._config.overrides.keep_default(default)
        if self.loaded.names != before and self.loaded.keeps_default:
            LOG.warning(
                "default_model_kept",
                model=default,
                beside=listed(name for name in self.loaded.names if name != default),
                hint="set TORCHLANE_DEFAULT_MODEL: after a restart /predict would mean no model",
            )

    async def _give_up(self, fault: DeviceLost) -> None:
        """The process is lost with its device: whoever still waits gets an outcome first."""
        self.device_lost = True
        await self.drain(0.0)
        self._config.on_device_lost(fault)


def _state(replica: Replica, model: ModelId | None) -> str:
    if replica.state is ReplicaState.READY and model is not None and model not in replica.models:
        return "loading"
    return replica.state.value


def _let_go(_: object) -> None:
    """What was found out for nobody is dropped."""
