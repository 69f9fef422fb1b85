"""The thread of a replica: the order of its jobs, and the batches that its device runs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from app.backends.base import Backend, close_safely
from app.errors import ReplicaHangs
from app.threads import tell
from app.types import ModelId

T = TypeVar("T")


class Handover(Generic[T]):
    """One result, given by a thread to the event loop, which finishes it exactly once.

    Args:
        loop: the event loop, which is notified of the result unless it waits for it.
        finish: called with the result, on the loop.
        awaited: whether `wait` will be called.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, finish: Callable[[T], None], *, awaited: bool
    ) -> None:
        self._loop = loop
        self._finish = finish
        self._awaited = awaited
        self._finished = False
        self._results: queue.SimpleQueue[T] = queue.SimpleQueue()
        # On Python 3.11 and 3.12 a timed wait on the queue would hang if a signal handler outlasts
        # the remaining time.
        self._given = threading.Lock()
        self._given.acquire()

    def give(self, result: T) -> None:
        """In the thread: hand over the result."""
        self._results.put(result)
        self._given.release()
        if not self._awaited:
            tell(self._loop, self._take)

    def wait(self, block_s: float) -> None:
        """On the loop: block until the result is given, and finish it if it is in time."""
        try:
            self._given.acquire(timeout=block_s)
        finally:
            self._awaited = False  # a later `give` notifies the loop; an earlier result is taken
            try:
                self._take()
            except Exception as error:  # as the loop does for its callbacks
                context = {"message": "a result could not be taken", "exception": error}
                self._loop.call_exception_handler(context)

    def settle(self, result: T) -> None:
        """On the loop: finish with this result; the thread's own result is then ignored."""
        if not self._finished:
            self._finished = True
            self._finish(result)

    def _take(self) -> None:
        """Finish the result, if it was given and not taken before."""
        try:
            result = self._results.get_nowait()
        except queue.Empty:
            return
        self.settle(result)


# While a device runs a batch, its thread waits for another job, and polls this many times during
# the batch's expected time whether it is done.
LOOKS = 50
SHORTEST_LOOK_S, LONGEST_LOOK_S = 0.00005, 0.001
STEPS = itertools.count(1)  # for all threads


class Later(Generic[T]):
    """The future result of a batch that its device has begun.

    Args:
        get: waits for the result. Its argument is the time of `time.perf_counter` since which the
            device could have run this batch alone.
        is_done: whether `get` would not have to wait.
        expected_s: expected seconds of the device, without its thread's work; 0 if unknown.
    """

    __slots__ = ("expected_s", "get", "is_done")

    def __init__(
        self, get: Callable[[float], T], is_done: Callable[[], bool], expected_s: float
    ) -> None:
        self.get = get
        self.is_done = is_done
        self.expected_s = expected_s


class Begun(NamedTuple):
    """A batch that the device has begun, see `Later`; `end` waits for it, and never raises."""

    end: Callable[[float], None]
    is_done: Callable[[], bool]
    expected_s: float


class Job(NamedTuple):
    """Work for the thread, which never raises. Batches may run between the parts of other jobs."""

    work: Callable[[], Begun | None]
    is_batch: bool


class ReplicaThread:
    """One thread, its jobs, and its backends.

    A daemon: native code that never returns must not prevent the process from exiting.

    Args:
        name: the name for debuggers.
        begin: called first in the thread.

    Attributes:
        backends: used only in the thread.
        in_batch: whether it runs a batch now, possibly between the parts of another job.
        step: number of its current step, unique over all threads; None if it waits for a job.
    """

    def __init__(self, name: str, begin: Callable[[], None]) -> None:
        self.backends: dict[ModelId, Backend] = {}
        self._begin = begin
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._later: deque[Job | None] = deque()
        self._arrived = threading.Lock()  # open while there is a job that was not noticed
        self._arrived.acquire()
        self._begun: deque[Begun] = deque()
        self._ended_at = 0.0
        self._orphaned = False
        self.in_batch = False
        self.step: int | None = None
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def is_alive(self) -> bool:
        """Whether the thread still runs, which includes hanging."""
        return self._thread.is_alive()

    def do(self, job: Job) -> None:
        """Queue a job; a batch may also run between the parts of a long job."""
        self._jobs.put(job)
        self._wake()

    def end(self) -> None:
        """End the thread after its queued jobs."""
        self._jobs.put(None)
        self._wake()

    def orphan(self) -> None:
        """Give up the thread: if it ever returns, it cleans up and ends."""
        self._orphaned = True
        self._later.clear()  # jobs that were not begun hold the only references to backends
        with contextlib.suppress(queue.Empty):
            while True:
                self._jobs.get_nowait()
        self._jobs.put(None)
        self._wake()

    def beat(self) -> None:
        """In the thread: begin another step of a job.

        Raises:
            ReplicaHangs: if the thread was given up.
        """
        if self._orphaned:
            raise ReplicaHangs("the thread was given up")
        self.step = next(STEPS)

    def between(self) -> None:
        """In the thread, between the parts of a long job: run waiting batches first."""
        self.beat()
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return
            if job is not None and job.is_batch:
                self._do(job)
                self._end_all()
                self.beat()
            else:
                self._later.append(job)

    def _work(self) -> None:
        self._begin()
        while (job := self._next()) is not None and not self._orphaned:
            if not job.is_batch:
                self._end_all()
            self.step = next(STEPS)
            self._do(job)
            self.step = None
            del job  # an idle thread must not keep the last batch alive
            if len(self._begun) > 1:
                self._end_first()
        self._end_all()
        if self._orphaned:
            for backend in self.backends.values():
                close_safely(backend)
            self.backends.clear()

    def _do(self, job: Job) -> None:
        self.in_batch = job.is_batch
        begun = job.work()
        self.in_batch = False
        if begun is not None:
            self._begun.append(begun)

    def _next(self) -> Job | None:
        """The next job. Until there is one, finish the batches that the device has begun."""
        while self._begun:
            if self._later or self._comes_soon():
                break
            self._end_first()
        return self._later.popleft() if self._later else self._jobs.get()

    def _comes_soon(self) -> bool:
        """Whether another job is queued while the device still runs its first batch."""
        begun = self._begun[0]
        look_s = max(SHORTEST_LOOK_S, min(LONGEST_LOOK_S, begun.expected_s / LOOKS))
        while self._jobs.empty():
            if begun.expected_s <= 0 or begun.is_done():
                return False
            self._arrived.acquire(timeout=look_s)  # not on the queue: see `Handover`
        return True

    def _wake(self) -> None:
        """Wake the thread if it waits for another job while its device works."""
        if self._arrived.locked():
            with contextlib.suppress(RuntimeError):  # another thread has just released it
                self._arrived.release()

    def _end_first(self) -> None:
        """Wait for the batch that the device began first."""
        begun = self._begun.popleft()
        self.step = next(STEPS)
        self.in_batch = True
        begun.end(self._ended_at)
        self.in_batch = False
        self.step = None
        self._ended_at = time.perf_counter()

    def _end_all(self) -> None:
        while self._begun:
            self._end_first()
