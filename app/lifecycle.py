"""Discover -> verify -> load -> replay -> warm -> publish: owns what is loaded, and how.

Loading runs in the background, so that the process is live while it is not yet ready.
"""

from __future__ import annotations

import asyncio
import itertools
import time
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
from app.errors import ArtifactInvalid, DeviceLost, ReplicaError
from app.loaded import LoadedModel, LoadedModels, ModelState, Readiness, VersionStatus
from app.repository.store import Artifact, Repository
from app.types import Device, ModelId
from models.manifest import Variant

LOG = structlog.get_logger(__name__)
RECOVERY_DELAYS_S = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)  # the last one repeats
CLOSE_PATIENCE_S = 5.0  # at most, for a replica that is still in native code when the process ends
FAILED_TO_LOAD = "it could not be loaded or run; the log has the reason"
MIN_CLOSE_S = 0.1  # at least, when the budget is spent

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
        self._stop_by: float | None = None  # moment of time.monotonic
        self._recovering: set[str] = set()
        self._locks = {replica.name: asyncio.Lock() for replica in replicas}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start the replicas, and loading in the background."""
        self._engine.watch_faults(self._replica_failed)
        for replica in self._replicas:
            replica.open()
        self._run(self._load_all())

    def begin_drain(self, budget_s: float) -> None:
        """Not ready and no new work from now on; the budget of the whole stop starts to run.

        Only the first call counts.
        """
        if self._stop_by is None:
            self._stop_by = time.monotonic() + budget_s
            self._engine.begin_drain()

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
        for task in tuple(self._tasks):
            task.cancel()
        patience_s = max(MIN_CLOSE_S, min(CLOSE_PATIENCE_S, self.stop_left_s()))
        closed = await asyncio.gather(*(each.close(patience_s) for each in self._replicas))
        for replica, ended in zip(self._replicas, closed, strict=True):
            if not ended:
                LOG.error("replica_stuck", replica=replica.name, patience_s=patience_s)

    def readiness(self) -> Readiness:
        """Ready: not draining, and every model in the repository works on some replica."""
        if self._stop_by is not None:
            return Readiness(False, ("the server is shutting down",))
        return self.loaded.readiness(
            lambda model: any(replica.serves(model) for replica in self._replicas)
        )

    def replica_states(self) -> dict[str, tuple[Device, ReplicaState]]:
        """Replica name -> its device and state."""
        return {replica.name: (replica.device, replica.state) for replica in self._replicas}

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
            # Only ArtifactInvalid is written for clients; torch's own words hold paths and code.
            known = isinstance(error, ArtifactInvalid)
            problem = str(error) if known else FAILED_TO_LOAD
            self.loaded.record(VersionStatus(model, ModelState.FAILED, problem))
            self._makers.pop(model, None)
            LOG.error("model_not_loaded", model=str(model), problem=str(error), exc_info=not known)
            await asyncio.gather(*(replica.remove(model) for replica in self._replicas))
            return False
        manifest = artifact.manifest
        outputs = tuple(spec.name for spec in manifest.outputs)
        self._engine.publish(model, f"{artifact.digest}:{name}", outputs, golden.probe)
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
        """Install on all replicas at once; a replica that cannot is rebuilt later, in its own time.

        Raises:
            Exception: what condemns the version itself, wherever it was found.
        """
        results = await asyncio.gather(
            *(self._install(replica, model) for replica in self._replicas), return_exceptions=True
        )
        for result in results:
            if result is not None and not isinstance(result, ReplicaError):
                raise result
        for replica, result in zip(self._replicas, results, strict=True):
            if isinstance(result, ReplicaError):
                replica.state = ReplicaState.SICK
                self._replica_failed(replica, result)

    async def _install(self, replica: Replica, model: ModelId) -> None:
        """One at a time on each replica: loading and rebuilding must not undo each other."""
        async with self._locks[replica.name]:
            await replica.install(model, partial(self._makers[model], replica.device))

    def _replica_failed(self, replica: Replica, fault: ReplicaError) -> None:
        """A replica was marked sick: load its models anew, or give the process up."""
        LOG.error("replica_sick", replica=replica.name, fault=str(fault))
        if isinstance(fault, DeviceLost):
            self._run(self._give_up(fault))
        elif replica.name not in self._recovering:
            self._recovering.add(replica.name)
            self._run(self._recover(replica))

    async def _give_up(self, fault: DeviceLost) -> None:
        """The process is lost with its device: whoever still waits gets an outcome first."""
        await self.drain(0.0)
        self._config.on_device_lost(fault)

    async def _recover(self, replica: Replica) -> None:
        for delay_s in itertools.chain(RECOVERY_DELAYS_S, itertools.repeat(RECOVERY_DELAYS_S[-1])):
            await asyncio.sleep(delay_s)
            try:
                async with self._locks[replica.name]:
                    await self._rebuild(replica)
                    replica.state = ReplicaState.READY
            except DeviceLost as fault:
                await self._give_up(fault)
                return
            except Exception as error:
                LOG.error("replica_still_sick", replica=replica.name, problem=str(error))
            else:
                self._recovering.discard(replica.name)
                self._engine.wake()
                LOG.info("replica_recovered", replica=replica.name)
                return

    async def _rebuild(self, replica: Replica) -> None:
        """Everything that is or is being loaded, anew; an artifact that was altered stays out."""
        for model in tuple(replica.models):
            await replica.remove(model)  # first: the device may not hold both
        for model, make in tuple(self._makers.items()):
            try:
                await replica.install(model, partial(make, replica.device))
            except ArtifactInvalid as error:
                LOG.error(
                    "replica_without_model",
                    replica=replica.name,
                    model=str(model),
                    problem=str(error),
                )

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            LOG.error("background_task_failed", exc_info=task.exception())
