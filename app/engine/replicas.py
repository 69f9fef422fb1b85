"""Replicas: one thread on one device each, which runs whatever model's batch it is handed."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from app.backends.base import Backend, close_safely
from app.types import Device, ModelId, Serving

T = TypeVar("T")
Job = Callable[[], None]


class ReplicaState(enum.Enum):
    """Whether a replica may be given work."""

    READY = "ready"
    SICK = "sick"
    CLOSED = "closed"


class Replica:
    """A thread on a device, and the backends that were loaded in it.

    Everything but the backends is owned by the event loop; the backends are touched by the thread
    only.

    Args:
        name: unique among replicas; shown in metrics and /models.
        device: where its backends live.

    Attributes:
        busy: whether it runs a batch.
        busy_until: when that is expected to be done; whoever starts one says so.
        free_since: when the last one was done; likewise.
        calling: how many `call`s wait in the thread or run there.
    """

    def __init__(self, name: str, device: Device) -> None:
        self.name = name
        self.device = device
        self.state = ReplicaState.READY
        self.busy = False
        self.busy_until = self.free_since = 0.0
        self.calling = 0
        self.models: dict[ModelId, Serving] = {}
        self._backends: dict[ModelId, Backend] = {}
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        # A daemon: native code that never returns must not keep the process from ending.
        self._thread = threading.Thread(target=self._work, name=f"replica-{name}", daemon=True)

    def open(self) -> None:
        """Start the thread."""
        self._thread.start()

    def serves(self, model: ModelId) -> bool:
        """Whether it is well and has the model."""
        return self.state is ReplicaState.READY and model in self.models

    def is_free(self, model: ModelId) -> bool:
        """Whether it could start a batch of the model now."""
        return not self.busy and self.serves(model)

    def start(
        self,
        model: ModelId,
        work: Callable[[Backend], T],
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
            work: runs it.
            done: takes what came of it.
            failed: makes the same of an exception.
            block_s: for how many seconds at most the event loop stands still and waits.
        """
        self.busy = True

        def finish(result: T) -> None:
            self.busy = False
            done(result)

        handover = _Handover(asyncio.get_running_loop(), finish, awaited=block_s > 0)

        def job() -> None:
            try:
                result = work(self._backends[model])
            except BaseException as error:  # becomes a result: a dead thread would hang its callers
                result = failed(error)
            handover.give(result)

        self._jobs.put(job)
        if block_s > 0:
            handover.wait(block_s)

    async def install(self, model: ModelId, make: Callable[[], Backend]) -> None:
        """Make a model's backend in the thread and keep it; it replaces an older one.

        Raises:
            Exception: whatever `make` raises; the older backend stays then.
        """

        def job() -> Serving:
            made = make()
            old = self._backends.get(model)
            self._backends[model] = made
            if old is not None:
                close_safely(old)
            return made.serving()

        self.models[model] = await self.call(job)

    async def remove(self, model: ModelId) -> None:
        """Close a model's backend; harmless when there is none."""
        self.models.pop(model, None)

        def job() -> None:
            backend = self._backends.pop(model, None)
            if backend is not None:
                close_safely(backend)

        await self.call(job)

    async def call(self, work: Callable[[], T]) -> T:
        """Run something in the thread, after what is queued there, and await its result."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def job() -> None:
            try:
                result = work()
            except BaseException as error:  # handed to the awaiting side, not swallowed
                _tell(loop, _unless_done, future.set_exception, future, error)
            else:
                _tell(loop, _unless_done, future.set_result, future, result)

        self.calling += 1
        future.add_done_callback(self._called)
        self._jobs.put(job)
        return await future

    def _called(self, _: object) -> None:
        self.calling -= 1

    async def close(self, patience_s: float) -> bool:
        """Close all backends in the thread and end it; False if it did not get there in time."""
        self.state = ReplicaState.CLOSED

        def job() -> None:  # the last one: whatever an install before it made is here by now
            for backend in self._backends.values():
                close_safely(backend)
            self._backends.clear()

        try:
            async with asyncio.timeout(patience_s):
                await self.call(job)
        except TimeoutError:
            return False
        self._jobs.put(None)
        return True

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # an idle thread must not keep the last batch alive


class _Handover(Generic[T]):
    """One result, from the thread that gives it to the event loop, which finishes it exactly once.

    Args:
        loop: is told that there is a result, unless it awaits it.
        finish: gets it, on the loop.
        awaited: `wait` will be called.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, finish: Callable[[T], None], *, awaited: bool
    ) -> None:
        self._loop = loop
        self._finish = finish
        self._awaited = awaited
        self._results: queue.SimpleQueue[T] = queue.SimpleQueue()
        # To wait at the queue would hang on Python 3.11 and 3.12 where a signal outlasts the rest.
        self._given = threading.Lock()
        self._given.acquire()

    def give(self, result: T) -> None:
        """In the thread."""
        self._results.put(result)
        self._given.release()
        if not self._awaited:
            _tell(self._loop, self._take)

    def wait(self, block_s: float) -> None:
        """On the loop: stand still for the result, and finish it if it comes in time."""
        try:
            self._given.acquire(timeout=block_s)
        finally:
            self._awaited = False  # whoever gives from now on tells; what is there now is taken
            try:
                self._take()
            except Exception as error:  # as the loop does for what it calls
                context = {"message": "a result could not be taken", "exception": error}
                self._loop.call_exception_handler(context)

    def _take(self) -> None:
        """Finish the result, if it is there and was not taken before."""
        try:
            result = self._results.get_nowait()
        except queue.Empty:
            return
        self._finish(result)


def _tell(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: Any) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
        loop.call_soon_threadsafe(call, *arguments)


def _unless_done(settle: Callable[[Any], None], future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        settle(value)
