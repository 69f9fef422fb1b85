"""The lifecycle of all models: discover, verify, load, warm, replay, publish, retire.

It runs as long as the process. New versions are loaded while the old ones serve, and replace them
in one step; only then are the old ones retired. `rollout.py` does this for one model.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import structlog

from app.engine.engine import Engine
from app.engine.replica import Replica, ReplicaState
from app.errors import DeviceLost, ModelNotFound, ModelNotReady, ShuttingDown
from app.registry.loaded_models import (
    LoadedHandler,
    LoadedModels,
    ReplicaStatus,
    list_names,
)
from app.registry.readiness import Readiness, Requirements
from app.registry.repository import Contents, Repository
from app.serving.installer import Installer
from app.serving.models_file import ModelsFile
from app.serving.overrides import ALL, Override, Overrides
from app.serving.replica_pool import ReplicaPool, log_failure
from app.serving.rollout import Changes, Rollout
from app.serving.served_artifacts import ServedArtifacts
from app.serving.version_policy import VersionPolicy
from app.threads import in_thread
from app.types import ModelId
from models.system.heap import trim
from models.versions import RULE

LOG = structlog.get_logger(__name__)
CLOSE_PATIENCE_S = 5.0  # maximum wait for a replica still in native code when the process ends
MIN_CLOSE_S = 0.1  # minimum wait, if the budget is spent
OVERRIDES_LOOK_S = 1.0  # seconds between checks for requests made to another process


class Source(Protocol):
    """Keeps the repository as a store has it; `app.sources.source` has the real one."""

    async def need(self, versions: Collection[ModelId]) -> None:
        """Replace the versions whose files are needed in addition to the policy's."""

    async def first(self) -> None:
        """Wait until the repository has something to serve, or the store has failed."""

    async def refresh(self) -> None:
        """Look at the store now, and wait until that has ended, or for a time."""

    async def close(self) -> None:
        """Look no more."""

    def why_empty(self) -> str:
        """Why there are no models."""


@dataclass(frozen=True, slots=True)
class LifecycleConfig:
    """Configuration of the lifecycle.

    Attributes:
        policy: which versions to serve.
        artifacts: opens the versions that are served.
        overrides: an administrator's requests in addition to the policy.
        models: settings of single models.
        required: models without which the process is not ready; None: those that `models` requires.
        among_others: whether other workers also load their models at the server's start.
        reload_s: seconds between two checks of the repository; 0: only on request.
        on_loaded: called when loading the initial models has ended, successfully or not.
        on_readiness: called with this process's own readiness, and with whether all models work
            that should, after `on_loaded` and after a check that has changed one of them.
        on_retired: called in a thread after versions are retired, to free their memory.
        on_device_lost: called when a device is lost to the whole process, after its items are
            settled.
        source: brings versions into the repository; None: others do.
    """

    policy: VersionPolicy
    artifacts: ServedArtifacts
    overrides: Overrides
    models: ModelsFile
    required: Sequence[str] | None
    among_others: bool
    reload_s: float
    on_loaded: Callable[[], None]
    on_readiness: Callable[[bool, bool], None]
    on_retired: Callable[[], None]
    on_device_lost: Callable[[DeviceLost], None]
    source: Source | None = None


class Lifecycle:
    """Serves the versions that the policy selects, of every model in the repository.

    Args:
        repository: the artifacts on disk.
        engine: serves the models.
        pool: the replicas and their models.
        installer: loads and retires one version.
        loaded: records what is loaded.
        config: see `LifecycleConfig`.

    Attributes:
        stop_begun: set when a stop has begun.
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
        self._source = config.source
        self.device_lost = False
        self._stop_by: float | None = None  # moment of time.monotonic
        self.stop_begun = asyncio.Event()
        self._reconciling = asyncio.Lock()  # one change at a time
        self._reading = asyncio.Lock()  # of the models file
        self._ignored: set[str] = set()  # names in the repository that were logged
        self._unread: str | None = None  # why the repository could not be read, as logged
        self._failure: str | None = None  # of the last check, as logged
        self._others_load = config.among_others
        self._default_problem: str | None = None  # as logged
        self._settled = False  # whether everything present at the start was tried
        self._announced = False  # that this process is ready
        self._handled = 0  # number of requests when the last reconciliation began
        self._rollout = Rollout(
            config.artifacts,
            installer,
            loaded,
            policy=config.policy,
            settings=config.models.of,
        )
        self._running: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._applying: set[asyncio.Task[Changes]] = set()

    async def start(self) -> None:
        """Start the replicas, and start loading in the background."""
        self.loaded.has_begun = True
        self._engine.watch_faults(self._pool.replica_failed)
        self._pool.start(self._give_up)
        self._running = asyncio.create_task(self._run())
        self._running.add_done_callback(log_failure)
        self._following = asyncio.create_task(self._follow_settings())
        self._following.add_done_callback(log_failure)

    def begin_drain(self, budget_s: float) -> None:
        """Report not ready, accept no more work, and start the budget of the whole stop.

        Only the first call counts.
        """
        if self._stop_by is None:
            self._stop_by = time.monotonic() + budget_s
            self.stop_begun.set()
            self._engine.begin_drain()
            for task in self._working():
                task.cancel()  # load nothing more

    @property
    def stopping(self) -> bool:
        """Whether a stop has begun."""
        return self._stop_by is not None

    def stop_left_s(self) -> float:
        """Seconds left in the budget of a stop that has begun."""
        return 0.0 if self._stop_by is None else max(0.0, self._stop_by - time.monotonic())

    async def drain(self, budget_s: float) -> None:
        """Finish accepted work; requests still unanswered after the budget get ShuttingDown."""
        self.begin_drain(budget_s)
        handlers = self._installer.handlers.drain(budget_s)
        answered, _ = await asyncio.gather(self._engine.drain(budget_s), handlers)
        if not answered:
            LOG.error("drain_incomplete", budget_s=budget_s)

    async def stop(self, budget_s: float) -> None:
        """Drain, then close every backend and end the replicas' threads."""
        self.begin_drain(budget_s)
        await self.drain(self.stop_left_s())
        working = self._working()
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        await self._installer.handlers.stop()
        await self._installer.on_demand.stop()
        if self._source is not None:
            await self._source.close()
        await self._pool.stop()
        patience_s = max(MIN_CLOSE_S, min(CLOSE_PATIENCE_S, self.stop_left_s()))
        closed = await asyncio.gather(*(each.close(patience_s) for each in self._replicas))
        for replica, ended in zip(self._replicas, closed, strict=True):
            if not ended:
                LOG.error("replica_stuck", replica=replica.name, patience_s=patience_s)

    def _working(self) -> list[asyncio.Task[Any]]:
        tasks = (*self._applying, self._running, self._following)
        return [task for task in tasks if task is not None]

    def others_loaded(self) -> None:
        """Record that the other workers have also tried to load their models."""
        self._others_load = False

    def readiness(self) -> Readiness:
        """Ready if this process is, and no other worker is still loading its initial models."""
        readiness = self.own_readiness()
        if self._others_load:
            return readiness.but("another worker is still loading its models")
        return readiness

    def own_readiness(self) -> Readiness:
        """Ready if not draining and required models work, or with none required, all were tried."""
        if self.stopping:
            return Readiness(False, ("the server is shutting down",))
        readiness = self.requirements.readiness(self.works)
        if self._source is not None and not self.loaded.names:
            readiness = Readiness(False, (self._source.why_empty(),))
        if self._settled or (self._config.required and self.requirements.name_any):
            return readiness
        return readiness.but(f"models are being loaded: {list_names(self.problems())}")

    def problems(self) -> dict[str, str]:
        """Models that should work but do not, by name, with the reason."""
        return self.requirements.problems(self.works)

    def works(self, model: ModelId) -> bool:
        """Whether requests for this version, in whatever revision, can be answered now."""
        served = self.loaded.find_any(model.plain)
        if isinstance(served, LoadedHandler):
            return served.pool.works() and self.loaded.missing(served.manifest) is None
        if served is not None:
            model = served.id
        return self._installer.on_demand.works(model) or any(
            replica.serves(model) for replica in self._replicas
        )

    def has_room(self, model: ModelId) -> bool:
        """Whether this version, in whatever revision, is loaded, or there is room to load it."""
        served = self.loaded.find(model.plain)
        return served is None or self._installer.on_demand.has_room(served.id)

    def replica_states(self, model: ModelId | None) -> tuple[ReplicaStatus, ...]:
        """The states of the model's replicas: one without the model is `loading`, or `cold`."""
        return tuple(
            ReplicaStatus(
                replica.name,
                replica.device,
                self._state(replica, model),
                replica.models.get(model) if model is not None else None,
            )
            for replica in self._pool.hosts(model)
        )

    def _state(self, replica: Replica, model: ModelId | None) -> str:
        if replica.state is not ReplicaState.READY or model is None or model in replica.models:
            return replica.state.value
        return "cold" if self._installer.on_demand.is_cold(model) else "loading"

    async def reload(self) -> Changes:
        """Check the repository now, and try failed versions again."""
        await self._fetch()
        return await self._apply(self._config.overrides.reload())

    async def load(self, name: str, version: int | None = None) -> Changes:
        """Serve a version in addition to the policy's; without a version, follow the policy again.

        A version on demand is loaded into this process: without a number, the one that requests
        without a version get.

        Raises:
            ModelNotFound: if the repository has no such version.
            ModelNotReady: if the repository or the model's folder cannot be read, or a version on
                demand cannot be loaded.
            Overloaded: if there is no room for a version on demand.
        """
        await self._need(self._config.overrides.now(), ModelId(name, version or ALL))
        await self._fetch()
        await self._check_there(name, version)
        changes = await self._apply(self._config.overrides.load(ModelId(name, version or ALL)))
        served = self.loaded.find(ModelId(name, version)) if version else self.loaded.get(name)
        if served is not None:
            await self._installer.on_demand.warm(served.id)
        return changes

    async def unload(self, name: str, version: int | None = None) -> Changes:
        """Stop serving a version, or a whole model, until it is loaded again.

        The policy's next version takes its place first.

        Raises:
            ModelNotFound: if the repository has no such version, and it is not served.
            ModelNotReady: if the repository cannot be read.
        """
        await self._check_there(name, version)
        return await self._apply(self._config.overrides.unload(ModelId(name, version or ALL)))

    async def _check_there(self, name: str, version: int | None) -> None:
        try:
            contents = await in_thread(self._repository.scan)
        except OSError as error:
            raise ModelNotReady(f"the repository cannot be read: {error.strerror}") from error
        on_disk = contents.versions.get(name, [])
        numbers = {*on_disk, *(model.version for model in self.loaded.versions(name))}
        if not numbers and name in contents.unreadable:
            raise ModelNotReady(f"the folder of {name!r}: {contents.unreadable[name]}")
        if not numbers:
            raise ModelNotFound(f"there is no model {name!r} in the repository")
        if version is not None and version not in numbers:
            found = ", ".join(str(number) for number in sorted(numbers))
            raise ModelNotFound(f"there is no version {version} of {name!r}; there are: {found}")

    async def _apply(self, override: Override) -> Changes:
        if self.stopping:
            raise ShuttingDown("the server is shutting down; try another server")
        # A separate task: the caller may disconnect, but a change must not stop halfway.
        task = asyncio.create_task(self._reconcile(override, again=True))
        self._applying.add(task)
        task.add_done_callback(self._applying.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                raise  # the caller disconnected; the task continues
            raise ShuttingDown("the server is shutting down; try another server") from None

    async def _run(self) -> None:
        overrides = self._config.overrides
        try:
            await self._need(overrides.now())
            if self._source is not None:
                await self._source.first()
            await self._reconcile(overrides.now())
        except Exception as error:
            self._look_failed(error)
        self._settled = True
        self._config.on_loaded()
        readiness = self.own_readiness()
        told = readiness.ready, not self.problems()
        self._config.on_readiness(*told)
        self._announce()
        if not readiness.ready:
            LOG.error("not_ready", reasons=list(readiness.reasons))
            if not self.loaded.names:
                problem = self._repository.why_empty()
                if problem not in readiness.reasons:  # as that of a store
                    LOG.error("repository_empty", problem=problem, setting="TORCHLANE_MODEL_DIR")
        pause_s = self._config.reload_s
        if overrides.are_shared:
            pause_s = min(pause_s or OVERRIDES_LOOK_S, OVERRIDES_LOOK_S)
        checked_at = time.monotonic()
        while pause_s > 0 and not self.stopping:
            await asyncio.sleep(pause_s)
            try:
                override = overrides.now()
                again = override.asked > self._handled
                if again or 0 < self._config.reload_s <= time.monotonic() - checked_at:
                    checked_at = time.monotonic()
                    await self._reconcile(override, again=again)
                self._failure = None
                if (now := (self.own_readiness().ready, not self.problems())) != told:
                    told = now
                    self._config.on_readiness(*told)
                    self._announce()
            except Exception as error:
                self._look_failed(error)

    def _announce(self) -> None:
        """Log that this process is ready, once: with required models before all others are."""
        if not self._announced and self.own_readiness().ready:
            self._announced = True
            loaded = [str(model.id) for model in self.loaded.models()]
            loaded += [str(handler.id) for handler in self.loaded.handlers()]
            LOG.info("ready", models=loaded, unready=list(self.problems()))

    def _look_failed(self, error: Exception) -> None:
        """Log a failed check once: served versions keep serving, and the next check may succeed."""
        if repr(error) != self._failure:
            LOG.error("look_failed", exc_info=error)
        self._failure = repr(error)

    async def _reconcile(self, override: Override, *, again: bool = False) -> Changes:
        """Compare the served versions with the wanted ones, and change them.

        Args:
            override: requests in addition to the policy.
            again: whether to try failed versions again.
        """
        changes = Changes()
        await self._take_settings()  # settings that need no load must not wait for one
        async with self._reconciling:
            self._handled = max(self._handled, override.asked)
            contents = await self._scan()
            if contents is None:
                return changes
            if again:
                self._rollout.forget_failures()
            found = contents.versions
            self._discovered(contents, override)
            # Only of what may be loaded: sizes are read from files, and this is repeated for ever.
            serves = self.loaded.serves
            new = {name: n for name, n in found.items() if not serves(ModelId(name, n[0]))}
            ordered = list(new)
            if len(new) > 1:
                ordered = await in_thread(partial(self._repository.smallest_first, new))
            served = (name for name in found if name not in new)
            gone = (name for name in self.loaded.names if name not in found)
            for name in (*served, *ordered, *gone):
                numbers = found.get(name, [])
                if name in contents.unreadable:  # as far as is known
                    numbers = [status.id.version for status in self.loaded.statuses(name)]
                else:
                    await self._forget_dead(name, numbers, override)
                if not self.stopping:
                    await self._rollout.bring_up(name, numbers, override, changes)
                    self._announce()
            before = -1
            while len(changes.loaded) > before:  # handlers' models may be served by now
                before = len(changes.loaded)
                for name in self._rollout.waiting():
                    if not self.stopping:
                        await self._rollout.bring_up(name, found.get(name, []), override, changes)
                        self._announce()
        await self._need(override)
        self._rollout.check_handlers()
        self._rollout.check_weights()
        self._settle_failures(changes)
        if changes.retired:
            await in_thread(self._config.on_retired)
        elif changes.loaded and self._settled:
            await in_thread(trim)
        return changes

    async def _fetch(self) -> None:
        """Bring the repository up to date, if it mirrors a store."""
        if self._source is not None:
            await self._source.refresh()

    async def _need(self, override: Override, *also: ModelId) -> None:
        """Tell the source whose files are needed in addition to the policy's."""
        if self._source is None:
            return
        served = {model for name in self.loaded.names for model in self.loaded.versions(name)}
        in_releases = {
            ModelId(name, number)
            for name, release in self._config.models.releases().items()
            for number in (release.to, release.old)
            if number is not None
        }
        needed = served | override.loaded | in_releases | {*also}
        await self._source.need({model.plain for model in needed})

    def _settle_failures(self, changes: Changes) -> None:
        """Drop failures of versions that were loaded by another attempt of the same check."""
        changes.failed[:] = [
            each
            for number, each in enumerate(changes.failed)
            if each.id not in changes.loaded
            and each.id not in [later.id for later in changes.failed[number + 1 :]]
        ]

    async def _forget_dead(self, name: str, numbers: Iterable[int], override: Override) -> None:
        """Forget what dead processes served of a model, except versions that may be loaded."""
        kept = [each for each in numbers if not override.forbids(ModelId(name, each))]
        await in_thread(partial(self._config.artifacts.forget_dead, name, kept))

    async def _follow_settings(self) -> None:
        """Check the models file even while a version is being loaded, which may take minutes."""
        while self._config.reload_s > 0 and not self.stopping:
            await asyncio.sleep(self._config.reload_s)
            try:
                if self._reconciling.locked():  # otherwise `_run` reads it
                    await self._take_settings()
            except Exception as error:
                self._look_failed(error)

    async def _take_settings(self) -> None:
        """Apply those settings of the models file that need no load."""
        async with self._reading:
            await in_thread(self._config.models.look)
        if self._config.required is None:
            self.requirements.change(self._config.models.required)
        for model in self.loaded.models():
            settings = self._config.models.of(model.id.name)
            self._installer.adjust(model, settings, self.loaded)
        for handler in self.loaded.handlers():
            settings = self._config.models.of(handler.id.name)
            self._installer.handlers.adjust(handler, settings, self.loaded)

    async def _scan(self) -> Contents | None:
        """Read the repository, and log each new problem; None if it cannot be read."""
        try:
            contents = await in_thread(self._repository.scan)
        except OSError as error:
            if str(error) != self._unread:
                LOG.error("repository_unreadable", error=str(error))
            self._unread = str(error)
            self.loaded.record_unreadable()
            return None
        self._unread = None
        if new := sorted(contents.ignored - self._ignored):
            LOG.warning(
                "folders_ignored", names=list_names(new), hint=f"{RULE}, in a model's folder"
            )
        self._ignored = contents.ignored
        before = self.loaded.unreadable_folders
        for name, problem in contents.unreadable.items():
            if before.get(name) != problem:
                LOG.error("model_folder_unreadable", model=name, problem=problem)
        for name in before.keys() - contents.unreadable.keys():
            LOG.info("model_folder_readable", model=name)
        return contents

    def _discovered(self, contents: Contents, override: Override) -> None:
        """Record the models in the repository, and the default model."""
        before = self.loaded.names
        newest = (ModelId(name, numbers[0]) for name, numbers in contents.versions.items())
        self.loaded.record_contents(newest, override.default, contents.unreadable)
        self.requirements.resolve_every()
        default = self.loaded.default_model
        if default != override.default:
            self._config.overrides.keep_default(default)
        problem = self.loaded.default_problem
        if problem is not None and problem != self._default_problem:
            LOG.warning("default_model_missing", problem=problem)
        self._default_problem = problem
        if self.loaded.names != before and self.loaded.keeps_default:
            LOG.warning(
                "default_model_kept",
                model=default,
                others=list_names(name for name in self.loaded.names if name != default),
                hint="set TORCHLANE_DEFAULT_MODEL: after a restart /predict would have no model",
            )

    async def _give_up(self, fault: DeviceLost) -> None:
        """Report a lost device, once every waiting request has an outcome."""
        self.device_lost = True
        await self.drain(0.0)
        self._config.on_device_lost(fault)
