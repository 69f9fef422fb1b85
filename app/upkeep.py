"""Upkeep of the replicas: every model on every one of them, and what breaks built anew.

Installing, removing and rebuilding take turns on each replica, so that none undoes another.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import partial
from typing import TypeAlias

import structlog

from app.backends.base import Backend
from app.engine.replicas import Replica, ReplicaState
from app.errors import ArtifactInvalid, DeviceLost, ReplicaError
from app.types import Device, ModelId

LOG = structlog.get_logger(__name__)
RECOVERY_DELAYS_S = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)  # the last one repeats

# Makes a model's backend on a device, loaded and proved; runs in the replica's thread.
Maker: TypeAlias = Callable[[Device], Backend]


class Upkeep:
    """Keeps models on replicas.

    Args:
        replicas: all there are.
        wake: told when a replica can take work that it could not before.
        lost: what to do when a device is lost to the whole process.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        wake: Callable[[], None],
        lost: Callable[[DeviceLost], Coroutine[None, None, None]],
    ) -> None:
        self._replicas = replicas
        self._wake = wake
        self._lost = lost
        self._makers: dict[ModelId, Maker] = {}
        self._recovering: set[str] = set()
        self._locks = {replica.name: asyncio.Lock() for replica in replicas}
        self._tasks: set[asyncio.Task[None]] = set()

    async def stop(self) -> None:
        """End whatever is being tried again."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def install_everywhere(self, model: ModelId, make: Maker) -> None:
        """Install on all replicas at once; one that works is enough, the others are tried again.

        Raises:
            Exception: what condemns the version, or keeps it from every replica.
        """
        self._makers[model] = make
        results = await asyncio.gather(
            *(self._install(replica, model) for replica in self._replicas), return_exceptions=True
        )
        failures = [result for result in results if result is not None]
        lost = next((failure for failure in failures if isinstance(failure, DeviceLost)), None)
        if lost is not None:
            self._run(self._lost(lost))
            raise lost
        for failure in failures:
            if not isinstance(failure, ReplicaError) or len(failures) == len(self._replicas):
                raise failure
        for replica, result in zip(self._replicas, results, strict=True):
            if result is not None:
                self._lacks(replica, model, result)

    async def _install(self, replica: Replica, model: ModelId) -> None:
        """One at a time on each replica: loading and rebuilding must not undo each other."""
        async with self._locks[replica.name]:
            await replica.install(model, partial(self._makers[model], replica.device))

    async def remove_everywhere(self, model: ModelId) -> None:
        """Take a model from all replicas, and try it on none of them again."""
        self._makers.pop(model, None)

        async def remove(replica: Replica) -> None:
            async with self._locks[replica.name]:
                await replica.remove(model)

        await asyncio.gather(*(remove(replica) for replica in self._replicas))

    def _lacks(self, replica: Replica, model: ModelId, problem: BaseException) -> None:
        """A replica could not take a model: try again later, unless the artifact was altered."""
        LOG.error(
            "replica_without_model", replica=replica.name, model=str(model), problem=str(problem)
        )
        if not isinstance(problem, ArtifactInvalid):
            self._run(self._catch_up(replica, model))

    async def _catch_up(self, replica: Replica, model: ModelId) -> None:
        """A replica works but lacks one model: try again, with backoff."""
        async for _ in _backoff():
            if model not in self._makers or model in replica.models:
                return
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
        """A replica was marked sick: load its models anew, or give the process up."""
        LOG.error("replica_sick", replica=replica.name, fault=str(fault))
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
        """Everything that is or is being loaded, anew; a model that cannot does not hold up others.

        Raises:
            Exception: of the first model, if none could be loaded.
        """
        for model in tuple(replica.models):
            await replica.remove(model)  # first: the device may not hold both
        failures: list[Exception] = []
        for model, make in tuple(self._makers.items()):
            if model not in self._makers:
                continue  # condemned meanwhile
            try:
                await replica.install(model, partial(make, replica.device))
            except DeviceLost:
                raise
            except Exception as error:
                failures.append(error)
                self._lacks(replica, model, error)
        if failures and not replica.models:
            raise failures[0]

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(log_failure)


def log_failure(task: asyncio.Task[None]) -> None:
    """For tasks that nobody awaits: what ended them is at least seen."""
    if not task.cancelled() and task.exception() is not None:
        LOG.error("background_task_failed", exc_info=task.exception())


async def _backoff() -> AsyncIterator[None]:
    """Yields after each delay, for ever."""
    for delay_s in itertools.chain(RECOVERY_DELAYS_S, itertools.repeat(RECOVERY_DELAYS_S[-1])):
        await asyncio.sleep(delay_s)
        yield
