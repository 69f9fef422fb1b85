"""Discover -> verify -> load -> replay -> warm -> publish: owns what is loaded, and how.

Loading runs in the background, so that the process is live while it is not yet ready.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from app.backends.base import Backend
from app.backends.golden import Golden
from app.codecs.base import Codec
from app.codecs.choose import codec_for
from app.engine.engine import Engine
from app.engine.policy import buckets
from app.engine.replicas import Replica, ReplicaState
from app.errors import (
    DeviceLost,
    ModelNotFound,
    ModelNotReady,
    ReplicaError,
    TorchlaneError,
)
from app.metrics import Metrics
from app.repository.store import Artifact, Repository
from app.types import Device, ModelId
from models.manifest import Manifest, Variant

LOG = structlog.get_logger(__name__)
RECOVERY_DELAYS_S = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)  # the last one repeats
CLOSE_PATIENCE_S = 5.0  # for a replica that is still in native code when the process ends

# Makes the backend of one variant on one device; handed in by main, so that no torch is known here.
BackendFactory = Callable[[Artifact, Variant, Device], Backend]


class ModelState(enum.Enum):
    """How far a model has come."""

    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What the HTTP layer may know of a model that was loaded."""

    id: ModelId
    manifest: Manifest
    codec: Codec
    variant: str
    state: ModelState = ModelState.READY


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """One version that was looked at, and what is wrong with it, if anything."""

    id: ModelId
    state: ModelState
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the process should get traffic, and if not, why."""

    ready: bool
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LifecycleConfig:
    """How models are loaded.

    Attributes:
        max_batch_size: the largest batch, hence which buckets are warmed.
        default_model: what /predict means; None: the only model, else `digits`.
        on_device_lost: told when a device is lost to the whole process, after its items are
            settled.
    """

    max_batch_size: int
    default_model: str | None
    on_device_lost: Callable[[DeviceLost], None]
    on_loaded: Callable[[], None]


class Lifecycle:
    """Loads the newest good version of every model in the repository onto every replica.

    Args:
        repository: what there is on disk.
        engine: where loaded models are published.
        replicas: where they are installed.
        make_backend: makes one variant's backend on one device.
        metrics: where to count.
        config: how to load.
    """

    def __init__(
        self,
        repository: Repository,
        engine: Engine,
        replicas: Sequence[Replica],
        make_backend: BackendFactory,
        metrics: Metrics,
        config: LifecycleConfig,
    ) -> None:
        self._repository = repository
        self._engine = engine
        self._replicas = replicas
        self._make_backend = make_backend
        self._metrics = metrics
        self._config = config
        self._buckets = buckets(config.max_batch_size)
        self._loaded: dict[str, LoadedModel] = {}
        self._makers: dict[ModelId, Callable[[Device], Backend]] = {}
        self._seen: dict[ModelId, VersionStatus] = {}
        self._discovered = False
        self._draining = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start the replicas, and loading in the background."""
        self._engine.watch_faults(self._replica_failed)
        for replica in self._replicas:
            replica.open()
            self._show(replica)
        self._run(self._load_all())

    def begin_drain(self) -> None:
        """Not ready and no new work from now on; what was accepted is finished."""
        self._draining = True
        self._engine.begin_drain()

    async def drain(self, budget_s: float) -> None:
        """Finish what was accepted; what is left after the budget gets ShuttingDown."""
        self.begin_drain()
        if not await self._engine.drain(budget_s):
            LOG.error("drain_incomplete", budget_s=budget_s)

    async def stop(self, budget_s: float) -> None:
        """Drain, then close every backend and end the replicas' threads."""
        await self.drain(budget_s)
        for task in tuple(self._tasks):
            task.cancel()
        closed = await asyncio.gather(*(each.close(CLOSE_PATIENCE_S) for each in self._replicas))
        for replica, ended in zip(self._replicas, closed, strict=True):
            if not ended:
                LOG.error("replica_stuck", replica=replica.name, patience_s=CLOSE_PATIENCE_S)

    @property
    def default_model(self) -> str:
        """What a request without a model's name means."""
        names = self._names()
        if self._config.default_model is not None:
            return self._config.default_model
        return names[0] if len(names) == 1 else "digits"

    def resolve(self, name: str | None = None, version: int | None = None) -> LoadedModel:
        """The loaded model that a request means; without a name the default one.

        Raises:
            ModelNotFound: if there is no such model, or its version is not the one that is loaded.
            ModelNotReady: if it is still loading, or could not be loaded.
        """
        name = name or self.default_model
        loaded = self._loaded.get(name)
        if loaded is None:
            raise self._why_not(name)
        if version not in (None, loaded.id.version):
            raise ModelNotFound(
                f"version {version} of {name!r} is not loaded; version {loaded.id.version} is"
            )
        return loaded

    def models(self) -> tuple[LoadedModel, ...]:
        """Everything that is loaded."""
        return tuple(self._loaded.values())

    def statuses(self, name: str | None = None) -> tuple[VersionStatus, ...]:
        """Every version that was looked at, newest first within a model."""
        return tuple(s for s in self._seen.values() if name in (None, s.id.name))

    def replica_states(self) -> dict[str, tuple[Device, ReplicaState]]:
        """Replica name -> its device and state."""
        return {replica.name: (replica.device, replica.state) for replica in self._replicas}

    def readiness(self) -> Readiness:
        """Ready: not draining, and every model in the repository works on some replica."""
        reasons: list[str] = []
        if self._draining:
            reasons.append("the server is shutting down")
        if not self._discovered:
            reasons.append("the repository has not been read yet")
        else:
            names = self._names()
            if not names:
                reasons.append("the repository holds no model; export one and start again")
            elif self.default_model not in names:
                reasons.append(f"the default model {self.default_model!r} is not in the repository")
            reasons += [str(self._why_not(name)) for name in names if name not in self._loaded]
        reasons += [
            f"no replica of {model.id} works"
            for model in self._loaded.values()
            if not any(replica.serves(model.id) for replica in self._replicas)
        ]
        return Readiness(not reasons, tuple(reasons))

    def _names(self) -> list[str]:
        return list(dict.fromkeys(status.id.name for status in self._seen.values()))

    def _why_not(self, name: str) -> TorchlaneError:
        statuses = self.statuses(name)
        if not self._discovered or any(s.state is ModelState.LOADING for s in statuses):
            return ModelNotReady(f"model {name!r} is loading; try again shortly")
        if not statuses:
            known = ", ".join(self._names()) or "none"
            return ModelNotFound(f"there is no model {name!r}; there are: {known}")
        return ModelNotReady(f"model {name!r} could not be loaded: {statuses[0].problem}")

    async def _load_all(self) -> None:
        versions = await asyncio.to_thread(self._repository.versions)
        for name, numbers in versions.items():
            newest = ModelId(name, numbers[0])
            self._seen[newest] = VersionStatus(newest, ModelState.LOADING)
        self._discovered = True
        for name, numbers in versions.items():
            for number in numbers:
                if await self._load(ModelId(name, number)):
                    break
        self._config.on_loaded()
        readiness = self.readiness()
        if readiness.ready:
            LOG.info("ready", models=[str(model.id) for model in self.models()])
        else:
            LOG.error("not_ready", reasons=list(readiness.reasons))

    async def _load(self, model: ModelId) -> bool:
        """Try one version; a failure is recorded, and the next older one gets its turn."""
        self._seen[model] = VersionStatus(model, ModelState.LOADING)
        try:
            artifact = await asyncio.to_thread(self._repository.open, model)
            name, variant = next(iter(artifact.manifest.variants.items()))
            golden = Golden(artifact.manifest, variant.tolerance)
            self._makers[model] = self._maker(artifact, variant, golden)
            await self._install_everywhere(model)
        except Exception as error:
            known = isinstance(error, TorchlaneError)
            problem = str(error) if known else "it failed to load; the log has the reason"
            self._seen[model] = VersionStatus(model, ModelState.FAILED, problem)
            self._makers.pop(model, None)
            LOG.error("model_not_loaded", model=str(model), problem=str(error), exc_info=not known)
            return False
        manifest = artifact.manifest
        self._engine.publish(model, f"{artifact.digest}:{name}", golden.probe)
        self._loaded[model.name] = LoadedModel(model, manifest, codec_for(manifest), name)
        self._seen[model] = VersionStatus(model, ModelState.READY)
        LOG.info("model_loaded", model=str(model), variant=name, replicas=len(self._replicas))
        return True

    def _maker(
        self, artifact: Artifact, variant: Variant, golden: Golden
    ) -> Callable[[Device], Backend]:
        """What a replica's thread runs to get a backend that has proved itself."""

        def make(device: Device) -> Backend:
            backend = self._make_backend(artifact, variant, device)
            try:
                backend.load()
                golden.replay(backend, sizes=())
                backend.warm_up(golden.batches(self._buckets))
                golden.replay(backend, self._buckets)  # warming may have chosen other kernels
            except BaseException:
                backend.close()
                raise
            return backend

        return make

    async def _install_everywhere(self, model: ModelId) -> None:
        """Install on all replicas at once; one that works is enough.

        Raises:
            Exception: of the first replica, if it worked on none.
        """
        make = self._makers[model]
        results = await asyncio.gather(
            *(replica.install(model, partial(make, replica.device)) for replica in self._replicas),
            return_exceptions=True,
        )
        failures = [result for result in results if result is not None]
        if len(failures) == len(self._replicas):
            raise failures[0]
        for replica, failure in zip(self._replicas, results, strict=True):
            if failure is not None:
                LOG.error(
                    "replica_without_model",
                    replica=replica.name,
                    model=str(model),
                    problem=str(failure),
                )

    def _replica_failed(self, replica: Replica, fault: ReplicaError) -> None:
        """The engine has marked a replica sick: load its models anew, or give the process up."""
        LOG.error(
            "replica_sick", replica=replica.name, device=str(replica.device), fault=str(fault)
        )
        self._show(replica)
        if isinstance(fault, DeviceLost):
            self._config.on_device_lost(fault)
        else:
            self._run(self._recover(replica))

    async def _recover(self, replica: Replica) -> None:
        for delay_s in itertools.chain(RECOVERY_DELAYS_S, itertools.repeat(RECOVERY_DELAYS_S[-1])):
            await asyncio.sleep(delay_s)
            try:
                for model in tuple(replica.models):
                    await replica.remove(model)  # first: the device may not hold both
                for loaded in self._loaded.values():
                    make = self._makers[loaded.id]
                    await replica.install(loaded.id, partial(make, replica.device))
            except DeviceLost as fault:
                self._config.on_device_lost(fault)
                return
            except Exception as error:
                LOG.error("replica_still_sick", replica=replica.name, problem=str(error))
                continue
            replica.state = ReplicaState.READY
            self._show(replica)
            self._engine.wake()
            LOG.info("replica_recovered", replica=replica.name)
            return

    def _show(self, replica: Replica) -> None:
        ready = replica.state is ReplicaState.READY
        self._metrics.replica_ready.labels(replica.name, str(replica.device)).set(int(ready))

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
