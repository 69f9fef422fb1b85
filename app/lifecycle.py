"""Discover -> verify -> load -> replay -> warm -> publish: owns what is loaded, and how.

Loading runs in the background, so that the process is live while it is not yet ready.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from app.backends.base import Backend, close_safely
from app.backends.golden import Golden
from app.backends.selection import NotAsAskedFor, Preference, Selection, select
from app.codecs.choose import codec_for
from app.engine.engine import Engine
from app.engine.isolation import Contract
from app.engine.replicas import Replica, ReplicaState
from app.errors import ArtifactInvalid, DeviceLost, VariantUnusable
from app.loaded import (
    LoadedModel,
    LoadedModels,
    ModelState,
    Readiness,
    ReplicaStatus,
    VersionStatus,
)
from app.repository.store import Artifact, Repository
from app.types import Device, ModelId
from app.upkeep import Maker, Upkeep, log_failure
from models.plan import batch_sizes

LOG = structlog.get_logger(__name__)
CLOSE_PATIENCE_S = 5.0  # at most, for a replica that is still in native code when the process ends
FAILED_TO_LOAD = "it could not be loaded or run; the log has the reason"
MIN_CLOSE_S = 0.1  # at least, when the budget is spent

# Makes a selection's backend on one device; handed in by main, so that no torch is known here.
BackendFactory = Callable[[Artifact, Selection, Device], Backend]


@dataclass(frozen=True, slots=True)
class LifecycleConfig:
    """How models are loaded.

    Attributes:
        max_batch_size: the largest batch, hence which buckets are warmed.
        preference: which variant or precision to serve.
        on_device_lost: told when a device is lost to the whole process, after its items are
            settled.
    """

    max_batch_size: int
    preference: Preference
    on_device_lost: Callable[[DeviceLost], None]
    on_loaded: Callable[[], None]


class Attempt(enum.Enum):
    """What became of a version that was to be loaded.

    After FAILED the next older one gets its turn; after REFUSED it does not: the version is good,
    but lacks what the settings pin, or this machine cannot run that. An older one would be a silent
    step back.
    """

    LOADED = enum.auto()
    FAILED = enum.auto()
    REFUSED = enum.auto()


class Lifecycle:
    """Loads the newest good version of every model in the repository onto every replica.

    Args:
        repository: what there is on disk.
        engine: where loaded models are published.
        replicas: where they are installed.
        loaded: where it is recorded what is loaded.
        make_backend: makes the backend of what was selected, on one device.
        config: how to load.
    """

    def __init__(
        self,
        repository: Repository,
        engine: Engine,
        replicas: Sequence[Replica],
        loaded: LoadedModels,
        make_backend: BackendFactory,
        config: LifecycleConfig,
    ) -> None:
        self._repository = repository
        self._engine = engine
        self._replicas = replicas
        self.loaded = loaded
        self._make_backend = make_backend
        self._config = config
        self._buckets = batch_sizes(config.max_batch_size)
        self.device_lost = False
        self._stop_by: float | None = None  # moment of time.monotonic
        self._upkeep = Upkeep(replicas, engine.wake, self._give_up)
        self._loading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the replicas, and loading in the background."""
        self._engine.watch_faults(self._upkeep.replica_failed)
        for replica in self._replicas:
            replica.open()
        self._loading = asyncio.create_task(self._load_all())
        self._loading.add_done_callback(log_failure)

    def begin_drain(self, budget_s: float) -> None:
        """Not ready and no new work from now on; the budget of the whole stop starts to run.

        Only the first call counts.
        """
        if self._stop_by is None:
            self._stop_by = time.monotonic() + budget_s
            self._engine.begin_drain()

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
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)
        await self._upkeep.stop()
        patience_s = max(MIN_CLOSE_S, min(CLOSE_PATIENCE_S, self.stop_left_s()))
        closed = await asyncio.gather(*(each.close(patience_s) for each in self._replicas))
        for replica, ended in zip(self._replicas, closed, strict=True):
            if not ended:
                LOG.error("replica_stuck", replica=replica.name, patience_s=patience_s)

    def readiness(self) -> Readiness:
        """Ready: not draining, and every model in the repository works on some replica."""
        if self.stopping:
            return Readiness(False, ("the server is shutting down",))
        return self.loaded.readiness(
            lambda model: any(replica.serves(model) for replica in self._replicas)
        )

    def replica_states(self, model: ModelId | None) -> tuple[ReplicaStatus, ...]:
        """Every replica: `loading` while it works but lacks the model; else what it runs of it."""
        return tuple(
            ReplicaStatus(
                replica.name,
                replica.device,
                _state(replica, model),
                replica.models.get(model) if model is not None else None,
            )
            for replica in self._replicas
        )

    async def _load_all(self) -> None:
        try:
            versions = await asyncio.to_thread(self._repository.versions)
        except OSError as error:
            LOG.error("repository_unreadable", error=str(error))
            self.loaded.unreadable()
            return
        self.loaded.discovered(ModelId(name, numbers[0]) for name, numbers in versions.items())
        for name, numbers in versions.items():
            for number in numbers:
                if await self._load(ModelId(name, number)) is not Attempt.FAILED:
                    break
        self._config.on_loaded()
        readiness = self.readiness()
        if readiness.ready:
            LOG.info("ready", models=[str(model.id) for model in self.loaded.models()])
        else:
            LOG.error("not_ready", reasons=list(readiness.reasons))

    async def _load(self, model: ModelId) -> Attempt:
        """Try one version; a failure is recorded."""
        self.loaded.record(VersionStatus(model, ModelState.LOADING))
        try:
            artifact = await asyncio.to_thread(self._repository.open, model)
            selection = self._select(artifact)
            golden = Golden(artifact.manifest, selection.tolerance)
            batch_s: dict[int, float] = {}
            maker = self._maker(artifact, selection, golden, batch_s)
            await self._upkeep.install_everywhere(model, maker)
        except Exception as error:
            # Only ArtifactInvalid is written for clients; torch's own words hold paths and code.
            known = isinstance(error, ArtifactInvalid)
            problem = str(error) if known else FAILED_TO_LOAD
            self.loaded.record(VersionStatus(model, ModelState.FAILED, problem))
            LOG.error("model_not_loaded", model=str(model), problem=str(error), exc_info=not known)
            await self._upkeep.remove_everywhere(model)
            good = isinstance(error, NotAsAskedFor | VariantUnusable)  # the artifact, that is
            return Attempt.REFUSED if good else Attempt.FAILED
        manifest = artifact.manifest
        codec = codec_for(manifest)
        outputs = tuple(spec.name for spec in manifest.outputs)
        contract = Contract(outputs, golden.probe, codec.finish)
        self._engine.publish(model, f"{artifact.digest}:{selection.label}", contract, batch_s)
        self.loaded.publish(LoadedModel(model, manifest, codec, selection))
        count = sum(replica.serves(model) for replica in self._replicas)
        LOG.info("model_loaded", model=str(model), serves=selection.label, replicas=count)
        return Attempt.LOADED

    def _select(self, artifact: Artifact) -> Selection:
        kinds = {replica.device.kind for replica in self._replicas}
        selection = select(artifact.manifest, self._config.preference, kinds)
        wanted = self._config.preference.precision
        if wanted not in (None, selection.precision):
            LOG.warning(
                "precision_not_there",
                model=str(artifact.id),
                wanted=wanted,
                serves=selection.precision,
                instead="the model's own plan; export it with that variant to change this",
            )
        return selection

    def _maker(
        self, artifact: Artifact, selection: Selection, golden: Golden, batch_s: dict[int, float]
    ) -> Maker:
        """What a replica's thread runs to get a backend that has proved itself.

        Args:
            artifact: what is loaded.
            selection: in which form.
            golden: its examples.
            batch_s: batch size -> seconds, filled with what the replay took.
        """

        def make(device: Device) -> Backend:
            backend = self._make_backend(artifact, selection, device)
            try:
                backend.load()
                golden.replay(backend, sizes=())
                backend.warm_up(golden.batches(self._buckets))
                took_s = golden.replay(backend, self._buckets)  # warming may have chosen others
                batch_s.update(took_s)
            except BaseException:
                close_safely(backend)
                raise
            return backend

        return make

    async def _give_up(self, fault: DeviceLost) -> None:
        """The process is lost with its device: whoever still waits gets an outcome first."""
        self.device_lost = True
        await self.drain(0.0)
        self._config.on_device_lost(fault)


def _state(replica: Replica, model: ModelId | None) -> str:
    if replica.state is ReplicaState.READY and model is not None and model not in replica.models:
        return "loading"
    return replica.state.value
