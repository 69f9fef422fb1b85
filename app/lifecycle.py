"""Discover -> verify -> load -> replay -> warm -> publish: owns what is loaded, and how.

Loading runs in the background, so that the process is live while it is not yet ready.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from app.backends.base import Backend
from app.backends.golden import Golden
from app.codecs.choose import codec_for
from app.engine.engine import Engine
from app.engine.policy import buckets
from app.engine.replicas import Replica, ReplicaState
from app.errors import (
    DeviceLost,
    ReplicaError,
    TorchlaneError,
)
from app.loaded import LoadedModel, LoadedModels, ModelState, Readiness, VersionStatus
from app.repository.store import Artifact, Repository
from app.types import Device, ModelId
from models.manifest import Variant

LOG = structlog.get_logger(__name__)
RECOVERY_DELAYS_S = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)  # the last one repeats
CLOSE_PATIENCE_S = 5.0  # for a replica that is still in native code when the process ends

# Makes the backend of one variant on one device; handed in by main, so that no torch is known here.
BackendFactory = Callable[[Artifact, Variant, Device], Backend]


@dataclass(frozen=True, slots=True)
class LifecycleConfig:
    """How models are loaded.

    Attributes:
        max_batch_size: the largest batch, hence which buckets are warmed.
        on_device_lost: told when a device is lost to the whole process, after its items are
            settled.
    """

    max_batch_size: int
    on_device_lost: Callable[[DeviceLost], None]
    on_loaded: Callable[[], None]


class Lifecycle:
    """Loads the newest good version of every model in the repository onto every replica.

    Args:
        repository: what there is on disk.
        engine: where loaded models are published.
        replicas: where they are installed.
        loaded: where it is recorded what is loaded.
        make_backend: makes one variant's backend on one device.
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
        self._buckets = buckets(config.max_batch_size)
        self._makers: dict[ModelId, Callable[[Device], Backend]] = {}
        self._draining = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start the replicas, and loading in the background."""
        self._engine.watch_faults(self._replica_failed)
        for replica in self._replicas:
            replica.open()
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

    def readiness(self) -> Readiness:
        """Ready: not draining, and every model in the repository works on some replica."""
        if self._draining:
            return Readiness(False, ("the server is shutting down",))
        return self.loaded.readiness(
            lambda model: any(replica.serves(model) for replica in self._replicas)
        )

    def replica_states(self) -> dict[str, tuple[Device, ReplicaState]]:
        """Replica name -> its device and state."""
        return {replica.name: (replica.device, replica.state) for replica in self._replicas}

    async def _load_all(self) -> None:
        versions = await asyncio.to_thread(self._repository.versions)
        self.loaded.discovered(ModelId(name, numbers[0]) for name, numbers in versions.items())
        for name, numbers in versions.items():
            for number in numbers:
                if await self._load(ModelId(name, number)):
                    break
        self._config.on_loaded()
        readiness = self.readiness()
        if readiness.ready:
            LOG.info("ready", models=[str(model.id) for model in self.loaded.models()])
        else:
            LOG.error("not_ready", reasons=list(readiness.reasons))

    async def _load(self, model: ModelId) -> bool:
        """Try one version; a failure is recorded, and the next older one gets its turn."""
        self.loaded.record(VersionStatus(model, ModelState.LOADING))
        try:
            artifact = await asyncio.to_thread(self._repository.open, model)
            name, variant = next(iter(artifact.manifest.variants.items()))
            golden = Golden(artifact.manifest, variant.tolerance)
            self._makers[model] = self._maker(artifact, variant, golden)
            await self._install_everywhere(model)
        except Exception as error:
            known = isinstance(error, TorchlaneError)
            problem = str(error) if known else "it failed to load; the log has the reason"
            self.loaded.record(VersionStatus(model, ModelState.FAILED, problem))
            self._makers.pop(model, None)
            LOG.error("model_not_loaded", model=str(model), problem=str(error), exc_info=not known)
            return False
        manifest = artifact.manifest
        self._engine.publish(model, f"{artifact.digest}:{name}", golden.probe)
        self.loaded.publish(LoadedModel(model, manifest, codec_for(manifest), name))
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
                for loaded in self.loaded.models():
                    make = self._makers[loaded.id]
                    await replica.install(loaded.id, partial(make, replica.device))
            except DeviceLost as fault:
                self._config.on_device_lost(fault)
                return
            except Exception as error:
                LOG.error("replica_still_sick", replica=replica.name, problem=str(error))
                continue
            replica.state = ReplicaState.READY
            self._engine.wake()
            LOG.info("replica_recovered", replica=replica.name)
            return

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
