"""One version, from its files to serving and back: verify, load, replay, warm, publish, retire."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import time
from collections.abc import Callable, Iterator

import structlog

from app.backends.base import Backend, Between, close_safely
from app.backends.selection import (
    NotAsAskedFor,
    Selection,
)
from app.codecs.choose import codec_for
from app.engine.engine import Engine
from app.engine.execution.batch_runner import Contract
from app.engine.execution.handover import in_thread, tell
from app.errors import (
    ArtifactInvalid,
    OutOfMemory,
    ReplicaError,
    ReplicaHangs,
    VariantUnusable,
)
from app.metrics import Metrics
from app.registry.loaded_models import LoadedModel, LoadedModels, ModelState, VersionStatus
from app.registry.model_settings import ModelSettings
from app.registry.repository import Artifact, Repository
from app.serving.installation import Installation, limits_of, planned
from app.serving.replica_pool import Maker, ReplicaPool
from app.types import Arrays, Device, ModelId
from models.plan import batch_sizes

LOG = structlog.get_logger(__name__)
PROGRESS_S = 2.0
FAILED_TO_LOAD = "it could not be loaded or run; the log has the reason"

# Makes a selection's backend on one device; handed in by main, so that no torch is known here.
BackendFactory = Callable[[Artifact, Selection, Device], Backend]


class Attempt(enum.Enum):
    """What became of a version that was to be loaded.

    After FAILED the next older one gets its turn; after REFUSED it does not: the version is good,
    but lacks what the settings pin, or this machine cannot run that. An older one would be a silent
    step back. HINDERED is FAILED for a reason that may pass: no memory, a replica that broke.
    """

    LOADED = enum.auto()
    FAILED = enum.auto()
    HINDERED = enum.auto()
    REFUSED = enum.auto()


class Installer:
    """Installs and retires versions.

    Args:
        repository: where their files are.
        engine: where they are published.
        pool: what keeps them on the replicas.
        metrics: where it is counted what became of versions.
        make_backend: makes the backend of what was selected, on one device.
        settings: of a model, by its name.
    """

    def __init__(
        self,
        repository: Repository,
        engine: Engine,
        pool: ReplicaPool,
        metrics: Metrics,
        make_backend: BackendFactory,
        settings: Callable[[str], ModelSettings],
    ) -> None:
        self._repository = repository
        self._engine = engine
        self._pool = pool
        self._metrics = metrics
        self._make_backend = make_backend
        self._settings = settings

    async def install(self, model: ModelId, loaded: LoadedModels) -> Attempt:
        """Serve a version, if it proves itself; whatever serves beside it goes on meanwhile.

        A version that is served already is installed anew, as its settings say by now, and takes
        its own place in one step; if that fails, it serves on as it did.

        Args:
            model: which.
            loaded: where it is recorded how far it has come, and published at last.
        """
        began, batch_s = time.monotonic(), dict[str, dict[int, float]]()
        settings, old = self._settings(model.name), loaded.served(model)
        if old is None:
            loaded.record(VersionStatus(model, ModelState.LOADING, step="checking files"))
        else:
            model = model._replace(revision=old.id.revision + 1)
        try:
            artifact = await in_thread(lambda: self._repository.open(model.plain), _let_go)
            plan = planned(artifact, settings, self._pool.replicas)
            maker = self._maker(model, plan, batch_s, _Progress(model.plain, loaded))
            await self._pool.install_everywhere(model, maker)
        except Exception as error:
            return await self._failed(model, loaded, error)
        manifest, selection = artifact.manifest, plan.selection
        codec = codec_for(manifest)
        outputs = tuple(spec.name for spec in manifest.outputs)
        contract = Contract(outputs, plan.golden.probe, codec.finish)
        identity = f"{artifact.digest}:{selection.label}"
        largest = min(max(sizes) for sizes in batch_s.values())
        limits = limits_of(settings, largest)
        self._engine.publish(model, identity, contract, batch_s, limits)
        by = artifact.signed_by
        loaded.publish(LoadedModel(model, manifest, codec, selection, by, settings, largest))
        LOG.info(
            "model_loaded",
            model=str(model),
            serves=selection.label,
            replicas=sum(replica.serves(model) for replica in self._pool.replicas),
            max_batch_size=largest,
            seconds=round(time.monotonic() - began, 1),
        )
        self._metrics.load_ended(model, "loaded")
        if old is not None:
            await self._engine.retire(old.id)
            await self._pool.remove_everywhere(old.id)
        return Attempt.LOADED

    def adjust(self, model: LoadedModel, settings: ModelSettings, loaded: LoadedModels) -> None:
        """Let other settings hold at once, as far as that takes no load."""
        settings = settings.installed_as(model.settings)
        if settings != model.settings:
            self._engine.adjust(model.id, limits_of(settings, model.max_batch_size))
            loaded.change(dataclasses.replace(model, settings=settings))
            LOG.info("model_settings_changed", model=str(model.id))

    async def retire(self, model: ModelId, loaded: LoadedModels) -> None:
        """Serve a version no more: what it has accepted is answered, then its memory is free."""
        served = loaded.served(model)
        installed = model if served is None else served.id
        loaded.withdraw(model)
        await self._engine.retire(installed)
        await self._pool.remove_everywhere(installed)
        loaded.record(VersionStatus(model, ModelState.UNLOADED))
        LOG.info("model_retired", model=str(model))
        self._metrics.load_ended(model, "retired")

    async def _failed(self, model: ModelId, loaded: LoadedModels, error: Exception) -> Attempt:
        """Report a version that could not be installed, and take it from the replicas."""
        # Only ArtifactInvalid is written for clients; torch's own words hold paths and code.
        known = isinstance(error, ArtifactInvalid)
        problem = str(error) if known else FAILED_TO_LOAD
        event, state = "model_not_loaded", ModelState.FAILED
        if loaded.serves(model.plain):
            event, state = "model_settings_not_applied", ModelState.READY
            problem = f"it serves with its settings of before: {problem}"
        loaded.record(VersionStatus(model.plain, state, problem))
        LOG.error(event, model=str(model), problem=str(error), exc_info=not known)
        self._metrics.load_ended(model, "failed")
        await self._pool.remove_everywhere(model)
        return _attempt(error)

    def _maker(
        self,
        model: ModelId,
        plan: Installation,
        batch_s: dict[str, dict[int, float]],
        progress: _Progress,
    ) -> Maker:
        """How a replica gets a backend that has proved itself.

        Args:
            model: what is installed.
            plan: how.
            batch_s: replica -> batch size -> seconds, filled with what the replay took.
            progress: told of each step.
        """
        golden, places, selection = plan.golden, plan.places, plan.selection
        buckets = batch_sizes(plan.max_batch_size)

        def load(replica: str) -> Backend:
            progress.reached(f"reading weights for {replica}")
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
            def batches() -> Iterator[Arrays]:
                for size in buckets:
                    progress.reached(f"warming batches of {size} on {replica}")
                    yield from golden.batches([size])

            largest = backend.warm_up(batches(), between)
            progress.reached(f"replaying examples on {replica}")
            sizes = [size for size in buckets if size <= largest]
            batch_s[replica] = golden.replay(backend, sizes, between)  # by what warming has chosen

        def installed(replica: str) -> None:  # it may be late, or a rebuilt one
            self._engine.measured(model, replica, batch_s[replica])

        return Maker(places, load, prove, golden.probe, installed)


class _Progress:
    """What a load is at, told from whatever thread works at it.

    Made on the event loop, which alone writes what is shown. The log gets a line at most every
    PROGRESS_S seconds.
    """

    def __init__(self, model: ModelId, loaded: LoadedModels) -> None:
        self._model = model
        self._loaded = loaded
        self._loop = asyncio.get_running_loop()
        self._logged_s = 0.0

    def reached(self, step: str) -> None:
        """The next step begins."""
        tell(self._loop, self._show, step)

    def _show(self, step: str) -> None:
        seconds = self._loaded.reached(self._model, step)
        if seconds >= self._logged_s + PROGRESS_S:
            self._logged_s = seconds
            LOG.info("model_loading", model=str(self._model), step=step, seconds=round(seconds, 1))


def _attempt(error: Exception) -> Attempt:
    if isinstance(error, NotAsAskedFor | VariantUnusable):
        return Attempt.REFUSED
    passing = isinstance(error, ReplicaError | OutOfMemory | OSError)
    return Attempt.HINDERED if passing and not isinstance(error, ReplicaHangs) else Attempt.FAILED


def _let_go(_: Artifact) -> None:
    """An artifact that nobody waits for holds nothing."""
