"""Replicas: one thread on one device each, which runs whatever model's batch it is handed."""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from app.backends.base import Backend, Between, close_safely
from app.engine.execution.handover import Handover, in_thread, unless_done
from app.engine.execution.proving import ProvingThread, call_in
from app.engine.execution.replica_thread import Begun, Job, Later, ReplicaThread
from app.errors import DeviceLost, ReplicaError, ReplicaHangs
from app.types import Device, ModelId, Serving

T = TypeVar("T")
LOAD_LIMIT_S = 900.0  # a load, which is no step of a thread that is watched, hangs after it

# Proves a loaded backend: warms it, replays examples.
Prove: TypeAlias = Callable[[Backend, Between], None]


class ReplicaState(enum.Enum):
    """Whether a replica may be given work."""

    READY = "ready"
    SICK = "sick"
    CLOSED = "closed"


READY: Final = ReplicaState.READY  # looking at an enum's member takes longer than all of `serves`


def nothing_to_prove(_: Backend, __: Between) -> None:
    """For a backend that needs no proof."""


def nothing_first() -> None:
    """For a thread that needs no preparation."""


class Replica:
    """A thread on a device, and the backends that live in it.

    Everything but the backends is owned by the event loop; the backends are touched by the thread
    only.

    Args:
        name: unique among replicas; shown in metrics and /models.
        device: where its backends live.
        begin: called first in each of its threads.

    Attributes:
        busy: whether it runs a batch, or two.
        given_up: how many of its threads have hung.
        proving: the thread in which a model that is being installed proves itself; None: there is
            none.
    """

    def __init__(
        self, name: str, device: Device, begin: Callable[[], None] = nothing_first
    ) -> None:
        self.name = name
        self.device = device
        self.state = ReplicaState.READY
        self.busy = False
        self.models: dict[ModelId, Serving] = {}
        self._begin = begin
        self._thread = ReplicaThread(f"replica-{name}", begin)
        self._lost: list[ReplicaThread | ProvingThread] = []
        self.proving: ProvingThread | None = None
        self.given_up = 0
        # What makes each batch that it has fail, in the order in which they end.
        self._running: deque[Callable[[BaseException], None]] = deque()
        self._overlaps = False  # would what runs go on next to another batch?
        self._calls: set[asyncio.Future[Any]] = set()

    def open(self) -> None:
        """Start the thread."""
        self._thread.start()

    def serves(self, model: ModelId) -> bool:
        """Whether it is well and has the model."""
        return self.state is READY and model in self.models

    def is_free(self, model: ModelId) -> bool:
        """Whether it could start a batch of the model now."""
        return not self.busy and self.serves(model)

    def can_prefetch(self, model: ModelId) -> bool:
        """Whether its device works at one batch, and it could prepare one of the model meanwhile.

        Not while something is loaded there: that comes between.
        """
        return (
            len(self._running) == 1
            and self._overlaps
            and self.serves(model)
            and self.models[model].prefetches
            and not self.is_called
        )

    @property
    def is_called(self) -> bool:
        """Whether something that is no batch runs or waits in its thread, such as a load."""
        return bool(self._calls)

    def start(
        self,
        model: ModelId,
        work: Callable[[Backend], T | Later[T]],
        done: Callable[[T], None],
        failed: Callable[[BaseException], T],
        block_s: float = 0.0,
    ) -> None:
        """Run `work` on the model's backend in the thread; `done` gets its result on the loop.

        Where `work` raises, `failed` makes the result of what it raised: the thread lives on, and
        `done` is always called, once: before this returns, if the loop blocks and the result comes
        in that time, else later.

        Args:
            model: what to run.
            work: runs it, or has the device begin it.
            done: takes what came of it.
            failed: makes the same of an exception.
            block_s: for how many seconds at most the event loop stands still and waits.
        """
        self.busy = True
        self._overlaps = model in self.models and self.models[model].prefetches

        def finish(result: T) -> None:
            self._running.popleft()  # not by name: this and `give_up` would keep each other alive
            self.busy = bool(self._running)
            done(result)

        def give_up(fault: BaseException) -> None:
            handover.settle(failed(fault))

        thread = self._thread
        handover = Handover(asyncio.get_running_loop(), finish, awaited=block_s > 0)
        self._running.append(give_up)

        def job() -> Begun | None:
            try:
                result = work(thread.backends[model])
            except BaseException as error:  # becomes a result: a dead thread would hang its callers
                result = failed(error)
            if isinstance(result, Later):
                return Begun(partial(end, result), result.is_done, result.expected_s)
            handover.give(result)
            return None

        def end(later: Later[T], free_since: float) -> None:
            try:
                result = later.get(free_since)
            except BaseException as error:  # becomes a result, as in `job`
                result = failed(error)
            handover.give(result)

        thread.do(Job(job, is_batch=True))
        if block_s > 0:
            handover.wait(block_s)

    @property
    def beat(self) -> Callable[[], None]:
        """For a batch that begins now, in its thread: it is getting on, however long it takes."""
        return self._thread.beat

    async def install(
        self,
        model: ModelId,
        load: Callable[[], Backend],
        prove: Prove = nothing_to_prove,
        check: Prove = nothing_to_prove,
    ) -> None:
        """Load a model next to what is served, prove it, and keep it.

        It replaces an older backend of the same model. It is proved in a thread of its own, so
        that what is served waits for no forward of it but those of `check`. Where the device works
        by itself, forwards belong to the replica's thread, and batches run between them.

        Args:
            model: its name and version.
            load: makes a loaded backend; in a thread of its own.
            prove: warms it, replays examples.
            check: the last step, in the replica's thread; a few short forwards.

        Raises:
            Exception: whatever these raise; an older backend stays then.
        """
        given_up = self.given_up
        try:
            async with asyncio.timeout(LOAD_LIMIT_S):
                backend = await in_thread(load, close_safely)
        except TimeoutError as error:
            raise ReplicaHangs(f"{model} was not loaded within {LOAD_LIMIT_S:g} s") from error
        if self.given_up > given_up:  # what served here is installed first
            close_safely(backend)
            raise ReplicaError(f"the thread of {self.name} was given up while {model} was loaded")
        if not backend.serving().launches:
            await self._prove_apart(backend, prove)
            prove = nothing_to_prove
        thread = self._thread

        def job() -> Serving:
            try:
                prove(backend, thread.between)
                check(backend, thread.between)
            except BaseException:
                close_safely(backend)
                raise
            old = thread.backends.get(model)
            thread.backends[model] = backend
            if old is not None:
                close_safely(old)
            return backend.serving()

        self.models[model] = await self.call(job)

    async def _prove_apart(self, backend: Backend, prove: Prove) -> None:
        self.proving = ProvingThread(self.name, self._begin)
        try:
            await self.proving.prove(backend, prove)
        finally:
            self.proving = None

    async def remove(self, model: ModelId) -> None:
        """Close a model's backend; harmless when there is none."""
        self.models.pop(model, None)
        thread = self._thread

        def job() -> None:
            backend = thread.backends.pop(model, None)
            if backend is not None:
                close_safely(backend)

        try:
            await self.call(job)
        except DeviceLost:
            raise
        except ReplicaError:  # the thread was given up, with all it had
            pass

    async def call(self, work: Callable[[], T]) -> T:
        """Run something in the thread, after what is queued there, and await its result.

        Raises:
            ReplicaError: if the thread was given up meanwhile.
            Exception: whatever `work` raises.
        """
        future = call_in(self._thread, work)
        self._calls.add(future)
        future.add_done_callback(self._calls.discard)
        return await future

    @property
    def step(self) -> int | None:
        """Number of the forward, or the step of a load, that its thread is in; None: in none."""
        return self._thread.step

    @property
    def lost_threads(self) -> int:
        """Threads that were given up and have not come back."""
        self._lost = [thread for thread in self._lost if thread.is_alive()]
        return len(self._lost)

    def give_up_proof(self, fault: ReplicaError) -> None:
        """What is being proved hangs: it is not installed; the replica serves on."""
        if self.proving is not None:
            self._lost.append(self.proving)
            self.proving.give_up(fault)

    def give_up_thread(self, fault: ReplicaError) -> bool:
        """Its thread hangs: go on with a new one, which has no models yet. It is sick then.

        What the old one was doing fails with the fault, and what only waited for a batch that hangs
        as if the replica had broken: a version that is being proved meanwhile is not to blame. The
        old one's backends are closed if it ever comes back, and are lost with it else.

        Returns:
            whether it was running a batch.
        """
        if self.state is not ReplicaState.CLOSED:
            self.state = ReplicaState.SICK
        self.models.clear()
        innocent = self._thread.in_batch and isinstance(fault, ReplicaHangs)
        waited = ReplicaError(f"{fault}, with a batch") if innocent else fault
        self.given_up += 1
        self._lost.append(self._thread)
        self._thread.orphan()
        self._thread = ReplicaThread(f"replica-{self.name}", self._begin)
        self._thread.start()
        for future in tuple(self._calls):
            unless_done(future.set_exception, future, waited)
        if self.proving is not None:  # not to blame; what served here is installed first
            self.proving.give_up(ReplicaError(f"{fault}, while this was being loaded"))
        ran = bool(self._running)
        for give_up in tuple(self._running):
            give_up(fault)
        return ran

    async def close(self, patience_s: float) -> bool:
        """Close all backends in the thread and end it; False if it did not get there in time."""
        self.state = ReplicaState.CLOSED
        thread = self._thread

        def job() -> None:  # the last one: whatever an install before it made is here by now
            for backend in thread.backends.values():
                close_safely(backend)
            thread.backends.clear()

        try:
            async with asyncio.timeout(patience_s):
                await self.call(job)
        except (TimeoutError, ReplicaError):
            return False
        thread.end()
        return True
