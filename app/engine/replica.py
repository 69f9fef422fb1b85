"""Replicas: each is one thread on one device, which runs batches of all models."""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from app.backends.base import Backend, Between, close_safely
from app.engine.proving import ProvingThread, call_in
from app.engine.replica_thread import Begun, Handover, Job, Later, ReplicaThread
from app.errors import DeviceLost, ReplicaError, ReplicaHangs
from app.threads import in_thread, unless_done
from app.types import Device, ModelId, Serving

T = TypeVar("T")
KEEP_S = 10.0  # how long an idle thread for proofs is kept
LOAD_LIMIT_S = 900.0  # after this a load counts as hanging; the watchdog does not watch loads

# Proves a loaded backend: warms it, replays examples.
Prove: TypeAlias = Callable[[Backend, Between], None]


class ReplicaState(enum.Enum):
    """Whether a replica may be given work."""

    READY = "ready"
    SICK = "sick"
    CLOSED = "closed"


READY: Final = ReplicaState.READY  # looking up an enum's member takes longer than all of `serves`


def nothing_to_prove(_: Backend, __: Between) -> None:
    """Do nothing, for a backend that needs no proof."""


def nothing_first() -> None:
    """Do nothing, for a thread that needs no preparation."""


class Replica:
    """A thread on a device, and its backends.

    The event loop owns everything except the backends, which only the thread uses.

    Args:
        name: unique among replicas; shown in metrics and /models.
        device: the device of its backends.
        begin: called first in each of its threads.

    Attributes:
        busy: whether it runs one or two batches.
        given_up: number of its threads that were given up because they hung.
        proving: the thread that proves models being installed, if there is one; it may be idle.
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
        self._proving_ends: asyncio.TimerHandle | None = None
        self.given_up = 0
        # Callbacks that fail each of its batches, in the order in which the batches end.
        self._running: deque[Callable[[BaseException], None]] = deque()
        self._overlaps = False  # whether the running batch could overlap another one
        self._calls: set[asyncio.Future[Any]] = set()

    def open(self) -> None:
        """Start the thread."""
        self._thread.start()

    def serves(self, model: ModelId) -> bool:
        """Whether it is ready and has the model."""
        return self.state is READY and model in self.models

    def is_free(self, model: ModelId) -> bool:
        """Whether it could start a batch of the model now."""
        return not self.busy and self.state is READY and model in self.models

    def can_prefetch(self, model: ModelId) -> bool:
        """Whether it could prepare a batch of the model while its device runs another one.

        Not during a load in its thread, which runs between batches.
        """
        return (
            len(self._running) == 1
            and self._overlaps
            and self.serves(model)
            and self.models[model].prefetches
            and not self.runs_a_load
        )

    @property
    def runs_a_load(self) -> bool:
        """Whether work other than a batch, such as a load, runs or waits in its thread."""
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

        If `work` raises, `failed` converts the exception to a result: the thread continues, and
        `done` is always called exactly once: before this returns if the loop blocks and the result
        is given in that time, else later.

        Args:
            model: the model to run.
            work: runs it, or starts it on the device.
            done: called with the result.
            failed: converts an exception to a result.
            block_s: maximum seconds that the event loop blocks to wait for the result.
        """
        self.busy = True
        self._overlaps = model in self.models and self.models[model].prefetches

        def finish(result: T) -> None:
            self._running.popleft()  # not `remove(give_up)`: a reference cycle
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
            except BaseException as error:  # becomes a result: else callers would hang
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
        """The function that a batch beginning now calls in the thread to report progress."""
        return self._thread.beat

    async def install(
        self,
        model: ModelId,
        load: Callable[[], Backend],
        prove: Prove = nothing_to_prove,
        check: Prove = nothing_to_prove,
    ) -> None:
        """Load a model while others are served, prove it, and keep it.

        It replaces an older backend of the same model. It is proved in a thread of its own, so that
        served models wait only for the forwards of `check`. If the device works asynchronously, all
        forwards run in the replica's thread, and batches run between them.

        Args:
            model: its name and version.
            load: returns a loaded backend; called in a thread of its own.
            prove: warms it, replays examples.
            check: the last step, in the replica's thread; a few short forwards.

        Raises:
            Exception: any exception of these; an older backend is kept then.
        """
        given_up = self.given_up
        try:
            async with asyncio.timeout(LOAD_LIMIT_S):
                backend = await in_thread(load, close_safely)
        except TimeoutError as error:
            raise ReplicaHangs(f"{model} was not loaded within {LOAD_LIMIT_S:g} s") from error
        if self.given_up > given_up:  # the models served before must be installed first
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
        """Prove a backend in a thread that is kept for a while.

        Libraries have buffers for each thread that computes: with a new thread for each of many
        models, what they freed would lie scattered over the allocator's heaps.
        """
        if self._proving_ends is not None:
            self._proving_ends.cancel()
        if self.proving is None:
            self.proving = ProvingThread(self.name, self._begin)
        thread = self.proving
        try:
            await thread.prove(backend, prove)
        except BaseException:
            self._end_proving(thread)
            raise
        loop = asyncio.get_running_loop()
        self._proving_ends = loop.call_later(KEEP_S, self._end_proving, thread)

    def _end_proving(self, thread: ProvingThread) -> None:
        thread.end()
        if self.proving is thread:
            self.proving = None

    async def remove(self, model: ModelId) -> None:
        """Close a model's backend; harmless if there is none."""
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
        except ReplicaError:  # the thread was given up with all its backends
            pass

    async def call(self, work: Callable[[], T]) -> T:
        """Run work in the thread, after its queued jobs, and await the result.

        Raises:
            ReplicaError: if the thread was given up meanwhile.
            Exception: any exception of `work`.
        """
        future = call_in(self._thread, work)
        self._calls.add(future)
        future.add_done_callback(self._calls.discard)
        return await future

    @property
    def step(self) -> int | None:
        """Number of its thread's current forward, or step of a load; None if there is none."""
        return self._thread.step

    @property
    def lost_threads(self) -> int:
        """Number of threads that were given up and have not returned."""
        self._lost = [thread for thread in self._lost if thread.is_alive()]
        return len(self._lost)

    def give_up_proof(self, fault: ReplicaError) -> None:
        """Give up a model whose proof hangs: it is not installed; the replica still serves."""
        if self.proving is not None:
            self._lost.append(self.proving)
            self.proving.give_up(fault)
            self.proving = None

    def give_up_thread(self, fault: ReplicaError) -> bool:
        """Replace a hanging thread by a new one, which has no models yet; the replica is then sick.

        The old thread's work fails with the fault. Calls that only waited for a hanging batch fail
        as if the replica had broken: a version being proved at that time did not cause it. The old
        thread's backends are closed if it ever returns; otherwise they are lost.

        Returns:
            whether it was running a batch.
        """
        if self.state is not ReplicaState.CLOSED:
            self.state = ReplicaState.SICK
        self.models.clear()
        innocent = self._thread.in_batch and isinstance(fault, ReplicaHangs)
        waited = ReplicaError(f"{fault} in a batch") if innocent else fault
        self.given_up += 1
        self._lost.append(self._thread)
        self._thread.orphan()
        self._thread = ReplicaThread(f"replica-{self.name}", self._begin)
        self._thread.start()
        for future in tuple(self._calls):
            unless_done(future.set_exception, future, waited)
        if self.proving is not None:  # not the cause; models served before are installed first
            self.proving.give_up(ReplicaError(f"{fault} while this version was being loaded"))
            self.proving = None
        ran = bool(self._running)
        for give_up in tuple(self._running):
            give_up(fault)
        return ran

    async def close(self, patience_s: float) -> bool:
        """Close all backends in the thread and end it; False if this was not done in time."""
        self.state = ReplicaState.CLOSED
        if self.proving is not None:
            self._end_proving(self.proving)
        thread = self._thread

        def job() -> None:  # the last job: backends of earlier installs are here by now
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
