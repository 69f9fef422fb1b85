"""Installation and removal of one version: verify, load, warm, replay, publish, retire."""

from __future__ import annotations

import dataclasses
import enum
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

import structlog

from app.backends.base import Backend, Between, close_safely
from app.backends.selection import (
    PinnedVariantMissing,
    Selection,
)
from app.codecs.choose import codec_for
from app.engine.batch_runner import Contract
from app.engine.engine import Engine
from app.errors import (
    OutOfMemory,
    ReplicaError,
    ReplicaHangs,
    VariantUnusable,
    VersionChanged,
)
from app.metrics import Metrics
from app.registry.loaded_models import (
    LoadedHandler,
    LoadedModel,
    LoadedModels,
    ModelState,
    VersionStatus,
)
from app.registry.model_settings import ModelSettings
from app.registry.repository import Artifact, HandlerArtifact
from app.serving.handlers import HandlerInstaller, ModelsMissing, SettingsForbid
from app.serving.installation import (
    Installation,
    layout_of,
    limits_of,
    planned,
    problem_of,
)
from app.serving.progress import Progress
from app.serving.replica_pool import Maker, ReplicaPool
from app.serving.residency.model_memory import OnDemandModel
from app.serving.residency.on_demand import OnDemandModels
from app.serving.served_artifacts import ServedArtifacts
from app.threads import in_thread, lower_priority
from app.types import Arrays, BatchTimes, Device, ModelId
from models.padding import padding_of
from models.plan import batch_sizes

LOG = structlog.get_logger(__name__)
NOTHING_KNOWN: Mapping[str, BatchTimes] = MappingProxyType({})

# Creates a selection's backend on one device; main passes it in, so this module needs no torch.
BackendFactory = Callable[[Artifact, Selection, Device], Backend]


class Attempt(enum.Enum):
    """The result of installing a version.

    After FAILED, the next older version is tried. After REJECTED it is not: the version is good,
    but lacks what the settings pin, or this machine cannot run it, or its files changed while other
    processes serve it; serving an older version would be a silent downgrade. HINDERED
    is FAILED for a temporary reason: no memory or a broken replica. WAITING is REJECTED until other
    models are served, which a handler calls.
    """

    LOADED = enum.auto()
    FAILED = enum.auto()
    HINDERED = enum.auto()
    REJECTED = enum.auto()
    WAITING = enum.auto()


class Installer:
    """Installs and retires versions.

    Args:
        artifacts: contains their files.
        engine: serves published versions.
        pool: keeps them on the replicas.
        metrics: counts loaded, failed and retired versions.
        make_backend: creates the backend of a selection, on one device.
        settings: returns a model's settings, by its name.
        handlers: starts and ends handlers.
        on_demand: loads the models that are loaded on demand.
    """

    def __init__(
        self,
        artifacts: ServedArtifacts,
        engine: Engine,
        pool: ReplicaPool,
        metrics: Metrics,
        make_backend: BackendFactory,
        settings: Callable[[str], ModelSettings],
        *,
        handlers: HandlerInstaller,
        on_demand: OnDemandModels,
    ) -> None:
        self._artifacts = artifacts
        self.handlers = handlers
        self.on_demand = on_demand
        self._engine = engine
        self._pool = pool
        self._metrics = metrics
        self._make_backend = make_backend
        self._settings = settings

    async def install(self, model: ModelId, loaded: LoadedModels) -> Attempt:
        """Serve a version if its examples pass; served versions keep serving meanwhile.

        A version that is already served is installed again with its current settings, and replaces
        itself in one step; if that fails, it keeps serving as before. Its files must be the same.

        Args:
            model: the version.
            loaded: records its state, and finally publishes it.
        """
        began = time.monotonic()
        settings, old = self._settings(model.name), loaded.find_any(model)
        if old is None:
            loaded.record(
                VersionStatus(model, ModelState.LOADING, step="checking files", stage="verify")
            )
        else:
            model = model._replace(revision=old.id.revision + 1)
        try:
            served = old.digest if old is not None else None
            is_needed = not settings.on_demand or self._is_loaded(model.name, loaded)
            # What replaces a good version is checked first.
            whole = is_needed or bool(loaded.versions(model.name))
            artifact = await self._open(model, served, whole=whole)
            if isinstance(artifact, HandlerArtifact):
                return await self._install_handler(model, artifact, settings, loaded)
            if (misplaced := settings.misplaced(in_handler=False)) is not None:
                raise SettingsForbid(misplaced)
            codec = await in_thread(lambda: codec_for(artifact.manifest, artifact.read))
            plan = planned(artifact, settings, self._pool.replicas)
            batch_s: dict[str, BatchTimes] = {}
            if is_needed:
                async with self.on_demand.counted(model, largest_file(artifact)):
                    batch_s = await self._bring(model, plan, loaded)
        except Exception as error:
            return await self._failed(model, loaded, error)
        manifest, selection = artifact.manifest, plan.selection
        outputs = tuple(spec.name for spec in manifest.outputs)
        padding = padding_of(manifest.inputs, manifest.outputs)
        layout = layout_of(manifest.outputs, codec.finish)
        contract = Contract(outputs, plan.golden.probe, codec.finish, padding, layout)
        identity = f"{artifact.digest}:{selection.label}"
        largest = _largest(batch_s, plan.max_batch_size)
        limits = limits_of(settings, largest)
        demand = None
        if settings.on_demand:
            demand = self._demand(artifact, model, settings, loaded, batch_s, identity)
            if is_needed:
                self.on_demand.is_there(demand)
        self._engine.publish(model, identity, contract, batch_s, limits, demand)
        by = artifact.signed_by
        digest = artifact.digest
        loaded.publish(
            LoadedModel(model, manifest, codec, selection, by, settings, largest, digest)
        )
        if not is_needed:
            loaded.record(VersionStatus(model.plain, ModelState.COLD))
        LOG.info(
            "model_loaded" if is_needed else "model_on_demand",
            model=str(model),
            serves=selection.label,
            forms=self._forms(model),
            replicas=sum(replica.serves(model) for replica in self._pool.replicas),
            max_batch_size=largest,
            seconds=round(time.monotonic() - began, 1),
        )
        self._metrics.count_load(model, "loaded")
        if old is not None:
            await self._engine.retire(old.id)
            await self.on_demand.remove(old.id)
            await self._pool.remove_everywhere(old.id)
        return Attempt.LOADED

    def _is_loaded(self, name: str, loaded: LoadedModels) -> bool:
        """Whether a replica has a version of the model, which requests use."""
        served = [found.id for each in loaded.versions(name) if (found := loaded.find(each))]
        return any(replica.serves(model) for replica in self._pool.replicas for model in served)

    async def _open(
        self, model: ModelId, served: str | None, *, whole: bool
    ) -> Artifact | HandlerArtifact:
        """Open an artifact, and check all files of a model (`whole`) or of any handler."""

        def check() -> Artifact | HandlerArtifact:
            lower_priority()
            return self._artifacts.open(model.plain, served, whole=whole)

        artifact = await in_thread(check)
        if isinstance(artifact, HandlerArtifact) and not whole:
            return await self._open(model, artifact.digest, whole=True)
        return artifact

    async def _bring(
        self,
        model: ModelId,
        plan: Installation,
        loaded: LoadedModels,
        known: Mapping[str, BatchTimes] = NOTHING_KNOWN,
    ) -> dict[str, BatchTimes]:
        """Load and prove a version on its replicas.

        Args:
            model: the version.
            plan: its installation.
            loaded: shows the progress.
            known: batch times by replica, of an earlier load of the same files.

        Returns:
            batch times by replica.
        """
        batch_s: dict[str, BatchTimes] = {}
        steps = len(plan.places) * (2 + len(batch_sizes(plan.max_batch_size)))
        progress = Progress(model.plain, loaded, steps)
        maker = self._maker(model, plan, batch_s, progress, known)
        await self._pool.install_everywhere(model, maker)
        return batch_s

    def _demand(
        self,
        artifact: Artifact,
        model: ModelId,
        settings: ModelSettings,
        loaded: LoadedModels,
        batch_s: Mapping[str, BatchTimes],
        identity: str,
    ) -> OnDemandModel:
        """What loads a version on demand; its files are checked at each load."""
        known = dict(batch_s)

        async def load() -> None:
            checked = await self._open(model, artifact.digest, whole=True)
            if not isinstance(checked, Artifact):
                raise RuntimeError("bug: a handler has the digest of a model")
            plan = planned(checked, settings, self._pool.replicas)
            batch_s = await self._bring(model, plan, loaded, known)
            known.update(batch_s)
            current = loaded.find(model.plain)
            largest = _largest(batch_s, plan.max_batch_size)
            if current is not None and current.id == model and current.max_batch_size != largest:
                self._engine.adjust(model, limits_of(current.settings, largest))
                loaded.change(dataclasses.replace(current, max_batch_size=largest))

        return self.on_demand.add(model, load, largest_file(artifact), settings.idle_s, identity)

    async def _install_handler(
        self,
        model: ModelId,
        artifact: HandlerArtifact,
        settings: ModelSettings,
        loaded: LoadedModels,
    ) -> Attempt:
        """Serve a handler if its examples pass, as `install` does.

        Raises:
            ArtifactInvalid: see `HandlerInstaller.start`.
        """
        began, old = time.monotonic(), loaded.find_any(model.plain)
        progress = Progress(model.plain, loaded, 2)
        handler = await self.handlers.start(model, artifact, settings, loaded, progress.reached)
        loaded.publish_handler(handler)
        LOG.info(
            "handler_loaded",
            handler=str(model),
            calls=[str(each) for each in handler.manifest.models],
            processes=handler.pool.load().processes,
            seconds=round(time.monotonic() - began, 1),
        )
        self._metrics.count_load(model, "loaded")
        if isinstance(old, LoadedHandler):
            await self.handlers.end(old, replaced=True)
        return Attempt.LOADED

    def _forms(self, model: ModelId) -> list[str]:
        """The forms that run it, of all replicas."""
        serving = (each.models[model] for each in self._pool.replicas if each.serves(model))
        return list(dict.fromkeys(str(step.form) for each in serving for step in each.steps))

    def adjust(self, model: LoadedModel, settings: ModelSettings, loaded: LoadedModels) -> None:
        """Apply at once those new settings that need no reload."""
        settings = settings.installed_as(model.settings)
        if settings != model.settings:
            self._engine.adjust(model.id, limits_of(settings, model.max_batch_size))
            self.on_demand.adjust(model.id, settings.idle_s)
            loaded.change(dataclasses.replace(model, settings=settings))
            LOG.info("model_settings_changed", model=str(model.id))

    async def retire(self, model: ModelId, loaded: LoadedModels) -> None:
        """Stop serving a version: answer its accepted requests, then free its memory."""
        served = loaded.find_any(model)
        installed = model if served is None else served.id
        loaded.withdraw(model)
        if isinstance(served, LoadedHandler):
            await self.handlers.end(served)
        await self._engine.retire(installed)
        await self.on_demand.remove(installed)
        await self._pool.remove_everywhere(installed)
        await self._release(model)
        loaded.record(VersionStatus(model, ModelState.UNLOADED))
        LOG.info("model_retired", model=str(model))
        self._metrics.count_load(model, "retired")

    async def _failed(self, model: ModelId, loaded: LoadedModels, error: Exception) -> Attempt:
        """Report a version that could not be installed, and remove it from the replicas."""
        problem = problem_of(error)
        known = problem == str(error)
        event, state = "model_not_loaded", ModelState.FAILED
        if loaded.serves(model.plain):
            event, state = "model_settings_not_applied", ModelState.READY
            problem = f"it keeps serving with its earlier settings: {problem}"
        changed = isinstance(error, VersionChanged)
        loaded.record(VersionStatus(model.plain, state, problem, changed=changed))
        LOG.error(event, model=str(model), problem=str(error), exc_info=not known)
        self._metrics.count_load(model, "failed")
        await self._pool.remove_everywhere(model)
        if not loaded.serves(model.plain):
            await self._release(model.plain)
        return _attempt(error)

    async def _release(self, model: ModelId) -> None:
        await in_thread(lambda: self._artifacts.release(model))

    def _maker(
        self,
        model: ModelId,
        plan: Installation,
        batch_s: dict[str, BatchTimes],
        progress: Progress,
        known: Mapping[str, BatchTimes],
    ) -> Maker:
        """The functions that install a proven backend on a replica.

        Args:
            model: the version to install.
            plan: its installation.
            batch_s: batch times by replica, filled by the replay.
            progress: receives each step.
            known: see `_bring`.
        """
        golden, places, selection = plan.golden, plan.places, plan.selection
        buckets = batch_sizes(plan.max_batch_size)
        proved: dict[str, Backend] = {}  # by replica

        def load(replica: str) -> Backend:
            progress.reached("load", f"reading weights for {replica}")
            first, *later = places[replica]
            chosen = dataclasses.replace(selection, devices=(first, *later) if later else ())
            backend = self._make_backend(plan.artifact, chosen, first)
            try:
                backend.load()
            except BaseException:
                close_safely(backend)
                raise
            return backend

        def prove(replica: str, backend: Backend, between: Between) -> None:
            def batches(sizes: Sequence[int]) -> Iterator[Arrays]:
                for size in sizes:
                    progress.reached("warm", f"warming batches of {size} on {replica}")
                    yield from golden.batches([size])

            # A copy, because other replicas prove at the same time.
            others = tuple(proved.items())
            twin = next((name for name, each in others if backend.shares(each)), None)
            if replica in known:
                largest = max(map(max, known[replica].values()))
                backend.warm_up(batches(sorted({1, largest})), between)
                progress.reached("prove", f"replaying examples on {replica}")
                golden.replay_forms(backend, between)
                batch_s[replica] = known[replica]
            elif twin is None:
                warmed = backend.warm_up(batches(buckets), between)
                progress.reached("prove", f"replaying examples on {replica}")
                sizes = [size for size in buckets if size <= warmed.largest]
                batch_s[replica] = golden.replay(backend, sizes, between, warmed.seconds)
            else:  # the twin has warmed and timed what both run
                progress.reached("prove", f"replaying examples on {replica}")
                golden.replay_forms(backend, between)
                batch_s[replica] = batch_s[twin]
            proved[replica] = backend

        def installed(replica: str) -> None:  # may be late, or for a rebuilt replica
            self._engine.measured(model, replica, batch_s[replica])

        return Maker(places, load, prove, golden.probe, installed)


def largest_file(artifact: Artifact) -> int:
    """Bytes of the artifact's largest file: about those of its weights."""
    return max((file.bytes for file in artifact.manifest.files.values()), default=0)


def _largest(batch_s: Mapping[str, BatchTimes], planned_batch: int) -> int:
    """The largest batch that all replicas have run; without any, the planned one."""
    return min((max(map(max, each.values())) for each in batch_s.values()), default=planned_batch)


def _attempt(error: Exception) -> Attempt:
    if isinstance(error, ModelsMissing):
        return Attempt.WAITING
    if isinstance(error, PinnedVariantMissing | VariantUnusable | VersionChanged | SettingsForbid):
        return Attempt.REJECTED
    passing = isinstance(error, ReplicaError | OutOfMemory | OSError)
    return Attempt.HINDERED if passing and not isinstance(error, ReplicaHangs) else Attempt.FAILED
