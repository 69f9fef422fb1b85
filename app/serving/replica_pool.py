"""Keeps every model on its replicas, and rebuilds sick replicas.

Each replica runs one install, removal or rebuild at a time, so that they cannot undo each other.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import structlog

from app.backends.base import Backend, Between
from app.engine.replica import Replica, ReplicaState
from app.errors import ArtifactInvalid, DeviceLost, ReplicaError, ReplicaHangs
from app.metrics import Metrics
from app.serving.watchdog import Watchdog
from app.types import Device, ModelId

LOG = structlog.get_logger(__name__)
RECOVERY_DELAYS_S = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)  # the last one repeats

# Maximum threads of all replicas that may hang in native code; one more ends the process.
MAX_LOST_THREADS = 3
PROOF_PATIENCE = 4  # times the limit: proofs run while other models serve, with lower priority
HANG_LOOKS = 4  # checks of every replica within the time limit of a forward
OVERSLEPT = 1.5  # times the pause between two checks: the process was paused; skip the check


class Maker(NamedTuple):
    """Functions that install a model on a replica, given its name; see `Replica.install`.

    Attributes:
        hosts: names of the replicas to install on, and the devices that each uses.
        load: creates a loaded backend.
        prove: warms a loaded backend and replays examples on it.
        check: runs one example, in the replica's thread.
        installed: called on the event loop.
    """

    hosts: Mapping[str, Sequence[Device]]
    load: Callable[[str], Backend]
    prove: Callable[[str, Backend, Between], None]
    check: Callable[[Backend], None]
    installed: Callable[[str], None]

    async def install(self, model: ModelId, replica: Replica) -> None:
        """Load and prove the model on a replica."""
        load, prove = partial(self.load, replica.name), partial(self.prove, replica.name)
        await replica.install(model, load, prove, lambda backend, _: self.check(backend))
        self.installed(replica.name)


class ReplicaPool:
    """Keeps models on replicas, and replicas working.

    Args:
        replicas: all replicas.
        wake: called when a replica can accept new work.
        metrics: counts faults.
        hang_s: limit of a forward, or of a step of a load; longer ones count as hung.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        wake: Callable[[], None],
        metrics: Metrics,
        hang_s: float,
    ) -> None:
        self.replicas = replicas
        self._wake = wake
        self._metrics = metrics
        self._hang_s = hang_s
        self._makers: dict[ModelId, Maker] = {}
        self._recovering: set[str] = set()
        self._behind: set[tuple[str, ModelId]] = set()  # (replica, a model that it lacks)
        self._locks = {replica.name: asyncio.Lock() for replica in replicas}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, lost: Callable[[DeviceLost], Coroutine[None, None, None]]) -> None:
        """Start the replicas and the watchdog.

        Args:
            lost: called when a device is lost to the whole process.
        """
        self._lost = lost
        for replica in self.replicas:
            replica.open()
        self._run(self._watch())

    async def stop(self) -> None:
        """Cancel all background tasks."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def install_everywhere(self, model: ModelId, make: Maker) -> None:
        """Install on all hosts of a model; one success suffices, and the others are retried.

        The first install runs alone: if it hangs, or the version is bad, no other replica suffers.

        Raises:
            Exception: what is wrong with the version, or why no replica could install it.
        """
        self._makers[model] = make
        lacking: dict[str, BaseException] = {}
        first, *others = (replica for replica in self.replicas if replica.name in make.hosts)
        # While a model is served, the others install one by one: batches need a replica.
        serving = any(replica.models for replica in self.replicas)
        for group in ([first], *(([each] for each in others) if serving else (others,))):
            results = await asyncio.gather(
                *(self._install(replica, model) for replica in group), return_exceptions=True
            )
            for replica, result in zip(group, results, strict=True):
                if isinstance(result, DeviceLost):
                    self._run(self._lost(result))
                if isinstance(result, DeviceLost | ReplicaHangs):
                    raise result
                if isinstance(result, ReplicaError):
                    lacking[replica.name] = result
                elif result is not None:
                    raise result
        for replica in (first, *others):
            if len(lacking) == 1 + len(others):
                raise lacking[replica.name]
            if replica.name in lacking:
                self._lacks(replica, model, lacking[replica.name])

    def hosts(self, model: ModelId | None) -> Sequence[Replica]:
        """The replicas that have or will have a model; all for an unknown model."""
        maker = self._makers.get(model) if model is not None else None
        return [each for each in self.replicas if maker is None or each.name in maker.hosts]

    async def _install(self, replica: Replica, model: ModelId) -> None:
        """Install on a replica under its lock: a load and a rebuild must not overlap."""
        async with self._locks[replica.name]:
            await self._makers[model].install(model, replica)

    async def remove_everywhere(self, model: ModelId) -> None:
        """Remove a model from all replicas, and stop trying to install it."""
        self._makers.pop(model, None)

        async def remove(replica: Replica) -> None:
            async with self._locks[replica.name]:
                await replica.remove(model)

        await asyncio.gather(*(remove(replica) for replica in self.replicas))

    def _lacks(self, replica: Replica, model: ModelId, problem: BaseException) -> None:
        """Note a model that a replica could not install; retry, unless the artifact is bad."""
        LOG.error(
            "replica_without_model", replica=replica.name, model=str(model), problem=str(problem)
        )
        if not isinstance(problem, ArtifactInvalid) and (replica.name, model) not in self._behind:
            self._behind.add((replica.name, model))
            self._run(self._catch_up(replica, model))

    async def _catch_up(self, replica: Replica, model: ModelId) -> None:
        """Try to install a model on a working replica that lacks it, with backoff."""
        async for _ in _backoff():
            if model not in self._makers or model in replica.models:
                self._behind.discard((replica.name, model))
                return
            if replica.state is ReplicaState.SICK:
                continue  # its rebuild installs all its models
            try:
                await self._install(replica, model)
            except DeviceLost as fault:
                await self._lost(fault)
                return
            except Exception as error:
                LOG.error("replica_still_without_model", replica=replica.name, problem=str(error))
            else:
                self._wake()

    def replica_failed(self, replica: Replica, fault: ReplicaError) -> None:
        """Handle a replica that was marked sick: reload its models, or give up the process."""
        LOG.error("replica_sick", replica=replica.name, fault=str(fault))
        kind = _kind(fault)
        self._metrics.replica_faults.labels(replica.name, str(replica.device), kind).inc()
        if isinstance(fault, DeviceLost):
            self._run(self._lost(fault))
        elif replica.state is ReplicaState.SICK and replica.name not in self._recovering:
            self._recovering.add(replica.name)
            self._run(self._recover(replica))

    async def _recover(self, replica: Replica) -> None:
        """Rebuild a sick replica, with backoff."""
        async for _ in _backoff():
            try:
                async with self._locks[replica.name]:
                    await self._rebuild(replica)
                    replica.state = ReplicaState.READY
            except DeviceLost as fault:
                await self._lost(fault)
                return
            except Exception as error:
                LOG.error("replica_still_sick", replica=replica.name, problem=str(error))
            else:
                self._recovering.discard(replica.name)
                self._wake()
                LOG.info("replica_recovered", replica=replica.name)
                return

    async def _rebuild(self, replica: Replica) -> None:
        """Load all models of a replica again; a failing one does not block the others.

        Raises:
            Exception: the first model's error, if no model could be loaded.
        """
        for model in tuple(replica.models):
            await replica.remove(model)  # first: the device may not have room for both
        failures: dict[ModelId, Exception] = {}
        given_up = replica.given_up
        for model, make in tuple(self._makers.items()):
            if model not in self._makers or replica.name not in make.hosts:
                continue  # removed meanwhile, or meant for other replicas
            try:
                await make.install(model, replica)
            except DeviceLost:
                raise
            except Exception as error:
                if replica.given_up > given_up:  # its models were lost with the thread: start again
                    self._lacks(replica, model, error)
                    raise
                failures[model] = error
        if failures and not replica.models:
            raise next(iter(failures.values()))
        for model, failure in failures.items():
            self._lacks(replica, model, failure)

    async def _watch(self) -> None:
        """Abandon threads that hang in native code, since nothing can end them."""
        watchdog, pause_s = Watchdog(HANG_LOOKS), self._hang_s / HANG_LOOKS
        watch_proofs = Watchdog(HANG_LOOKS * PROOF_PATIENCE)
        while True:
            began = time.monotonic()
            await asyncio.sleep(pause_s)
            if time.monotonic() - began > OVERSLEPT * pause_s:
                continue  # the process was paused for part of it
            for replica in self.replicas:
                if watchdog.hangs(replica):
                    self._hangs(replica)
                if replica.proving is not None and watch_proofs.hangs(replica.proving):
                    self._proof_hangs(replica)

    def _hangs(self, replica: Replica) -> None:
        fault = self._hang(replica, replica.name, self._hang_s)
        ran = replica.give_up_thread(fault)
        if not ran:  # otherwise the engine reports it
            self.replica_failed(replica, fault)

    def _proof_hangs(self, replica: Replica) -> None:
        seconds = self._hang_s * PROOF_PATIENCE
        fault = self._hang(replica, f"a model being loaded on {replica.name}", seconds)
        kind = _kind(fault)
        self._metrics.replica_faults.labels(replica.name, str(replica.device), kind).inc()
        replica.give_up_proof(fault)

    def _hang(self, replica: Replica, name: str, seconds: float) -> ReplicaError:
        """The fault of a hanging thread; too many such threads use up all cores."""
        used = [d for maker in self._makers.values() for d in maker.hosts.get(replica.name, ())]
        lost_threads = sum(each.lost_threads for each in self.replicas)
        problem = f"{name} has been in native code for more than {seconds:g} s"
        if any(device.kind == "cuda" for device in (replica.device, *used)):  # still running there
            return DeviceLost(problem)
        if lost_threads >= MAX_LOST_THREADS:
            return DeviceLost(f"{problem}, and {lost_threads} other threads hang already")
        return ReplicaHangs(problem)

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(log_failure)


def _kind(fault: ReplicaError) -> str:
    if isinstance(fault, DeviceLost):
        return "lost"
    return "hung" if isinstance(fault, ReplicaHangs) else "error"


def log_failure(task: asyncio.Task[None]) -> None:
    """Log the exception of a task that is never awaited."""
    if not task.cancelled() and task.exception() is not None:
        LOG.error("background_task_failed", exc_info=task.exception())


async def _backoff() -> AsyncIterator[None]:
    """Yield after each delay, endlessly."""
    for delay_s in itertools.chain(RECOVERY_DELAYS_S, itertools.repeat(RECOVERY_DELAYS_S[-1])):
        await asyncio.sleep(delay_s)
        yield
