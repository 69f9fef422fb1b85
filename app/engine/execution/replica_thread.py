"""The thread of a replica: what it does, in which order, and what its device does meanwhile."""

from __future__ import annotations

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
from app.types import ModelId

T = TypeVar("T")
# While a device works at a batch its thread waits for another one, and within the time expected of
# the first polls this many times whether that is done.
LOOKS = 50
SHORTEST_LOOK_S, LONGEST_LOOK_S = 0.00005, 0.001
STEPS = itertools.count(1)  # of all threads


class Later(Generic[T]):
    """What will come of a batch that its device has begun.

    Args:
        get: waits for it. Told since when the device could have worked at it alone, on
            `time.perf_counter`.
        is_done: whether `get` would not have to wait.
        expected_s: what the device takes for it, without whatever its thread does; 0: not known.
    """

    __slots__ = ("expected_s", "get", "is_done")

    def __init__(
        self, get: Callable[[float], T], is_done: Callable[[], bool], expected_s: float
    ) -> None:
        self.get = get
        self.is_done = is_done
        self.expected_s = expected_s


class Begun(NamedTuple):
    """A batch that the device has begun, as `Later` says; `end` waits for it, and never raises."""

    end: Callable[[float], None]
    is_done: Callable[[], bool]
    expected_s: float


class Job(NamedTuple):
    """Something to do in the thread; `work` never raises. Batches may go between others' parts."""

    work: Callable[[], Begun | None]
    is_batch: bool


class ReplicaThread:
    """One thread, its jobs, and the backends that live in it.

    A daemon: native code that never returns must not keep the process from ending.

    Args:
        name: for debuggers.
        begin: called in the thread before anything else.

    Attributes:
        backends: touched in the thread only.
        in_batch: whether what it does is a batch, be it between the parts of something else.
        step: number of what it is at, which no other step of any thread has; None: it waits for a
            job.
    """

    def __init__(self, name: str, begin: Callable[[], None]) -> None:
        self.backends: dict[ModelId, Backend] = {}
        self._begin = begin
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._later: deque[Job | None] = deque()
        self._arrived = threading.Lock()  # open while there is a job that was not looked for
        self._arrived.acquire()
        self._begun: deque[Begun] = deque()
        self._ended_at = 0.0
        self._orphaned = False
        self.in_batch = False
        self.step: int | None = None
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def is_alive(self) -> bool:
        """Whether it works, or hangs."""
        return self._thread.is_alive()

    def do(self, job: Job) -> None:
        """Do it after what is queued; a batch also between the parts of something long."""
        self._jobs.put(job)
        self._wake()

    def end(self) -> None:
        """End the thread, after what is queued."""
        self._jobs.put(None)
        self._wake()

    def orphan(self) -> None:
        """Give the thread up: should it ever come back, it cleans up and ends."""
        self._orphaned = True
        self._later.clear()  # what was not begun holds backends that nothing else has
        with contextlib.suppress(queue.Empty):
            while True:
                self._jobs.get_nowait()
        self._jobs.put(None)
        self._wake()

    def beat(self) -> None:
        """In the thread: another step of a job begins.

        Raises:
            ReplicaHangs: if the thread was given up.
        """
        if self._orphaned:
            raise ReplicaHangs("the thread was given up")
        self.step = next(STEPS)

    def between(self) -> None:
        """In the thread, between the parts of something long: let batches go first."""
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
        """The next job. Until one comes, what the device has begun is ended."""
        while self._begun:
            if self._later or self._comes_soon():
                break
            self._end_first()
        return self._later.popleft() if self._later else self._jobs.get()

    def _comes_soon(self) -> bool:
        """Whether another job comes while the device works at one."""
        begun = self._begun[0]
        look_s = max(SHORTEST_LOOK_S, min(LONGEST_LOOK_S, begun.expected_s / LOOKS))
        while self._jobs.empty():
            if begun.expected_s <= 0 or begun.is_done():
                return False
            self._arrived.acquire(timeout=look_s)  # not at the queue: see `Handover`
        return True

    def _wake(self) -> None:
        """For a thread that looks for another job while its device works."""
        if self._arrived.locked():
            with contextlib.suppress(RuntimeError):  # another thread has just done it
                self._arrived.release()

    def _end_first(self) -> None:
        """Wait for what the device began first."""
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
