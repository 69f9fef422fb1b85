"""Threads for work that would block the event loop, with bounded tasks and bytes."""

from __future__ import annotations

import asyncio
import math
import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

import structlog

from app.errors import Overloaded, TorchlaneError
from app.threads import lower_priority, tell

T = TypeVar("T")
LOG = structlog.get_logger(__name__)

AGAIN_S = 1.0  # a guess, before the first task has ended
MEAN_WEIGHT = 0.2  # of the last task in the tasks' mean time
MAX_TASKS = 32  # for each thread; the bytes are bounded too
MAX_THREADS = 4


class Task(Generic[T]):
    """Work that waits for a thread or runs in one."""

    def __init__(
        self,
        pool: OffloadPool,
        work: Callable[[], T],
        size_bytes: int,
        done: Callable[[T | Exception], None],
    ) -> None:
        self._pool = pool
        self._work = [work]  # popping from a list is atomic: either the thread or `cancel` gets it
        self._size_bytes = size_bytes
        self._done: Callable[[T | Exception], None] | None = done
        self._loop = asyncio.get_running_loop()

    def cancel(self) -> None:
        """Drop the work, or its result if a thread has begun it; harmless if it is done."""
        self._done = None
        if self._taken() is not None:
            self._pool.leave(self._size_bytes)

    def run(self) -> None:
        """In the thread: do the work, unless it was cancelled."""
        work = self._taken()
        if work is not None:
            began = time.perf_counter()
            result = _result(work)
            del work  # frees what it holds
            tell(self._loop, self._finish, (result, time.perf_counter() - began))

    def _taken(self) -> Callable[[], T] | None:
        try:
            return self._work.pop()
        except IndexError:
            return None

    def _finish(self, ended: tuple[T | Exception, float]) -> None:
        result, seconds = ended
        self._pool.leave(self._size_bytes, seconds)
        done, self._done = self._done, None
        if done is not None:
            done(result)


def _result(work: Callable[[], T]) -> T | Exception:
    """What the work returns or raises."""
    try:
        return work()
    except TorchlaneError as error:
        return without_frames(error)
    except BaseException as error:  # must not end the thread
        LOG.error("unhandled_error", exc_info=error)
        return RuntimeError(f"bug: {type(error).__name__} in a thread; the log has it")


def without_frames(error: TorchlaneError) -> TorchlaneError:
    """The error without tracebacks, whose frames keep whole bodies alive in cycles."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


class OffloadPool:
    """Does work in threads of low priority. Its state belongs to the event loop.

    Only work that releases the GIL benefits: native code that holds the GIL blocks the event loop
    from any thread.

    Args:
        threads: number of threads; they start with the first task.
        max_tasks: maximum number of waiting and running tasks.
        max_bytes: maximum number of bytes that these tasks hold.

    Attributes:
        threads: number of threads.
        tasks: number of waiting and running tasks.
        held: bytes that these tasks hold.
    """

    def __init__(self, threads: int, max_tasks: int, max_bytes: int) -> None:
        self.threads = threads
        self.max_tasks = max_tasks
        self.max_bytes = max_bytes
        self.tasks = 0
        self.held = 0
        self._mean_s = 0.0  # mean time of a task
        self._queue: queue.SimpleQueue[Task[object] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"offload-{index}", daemon=True)
            for index in range(threads)
        ]

    def check_room(self, size_bytes: int, within_s: float = math.inf) -> None:
        """Reject a task if there is no room for it, or no room in time.

        Args:
            size_bytes: bytes that the task holds.
            within_s: time within which it must begin.

        Raises:
            Overloaded: if there is no room; a retry should wait until the queued tasks are done.
        """
        waiting = max(0, self.tasks - len(self._threads) + 1)
        wait_s = waiting * self._mean_s / len(self._threads)
        is_full = self.tasks >= self.max_tasks
        is_large = self.tasks > 0 and self.held + size_bytes > self.max_bytes
        if is_full or is_large or wait_s > within_s:
            raise Overloaded(
                f"{self.tasks} requests with {self.held} bytes are in threads (limits "
                f"{self.max_tasks} and {self.max_bytes}), for about {wait_s:.1f} s; try again "
                "later",
                retry_after_s=wait_s or AGAIN_S,
            )

    def start(
        self, work: Callable[[], T], size_bytes: int, done: Callable[[T | Exception], None]
    ) -> Task[T]:
        """Do `work` in a thread; then `done` gets its result, or what it raised, on the loop.

        Args:
            work: what to do.
            size_bytes: bytes that the task holds.
            done: must not raise.

        Raises:
            Overloaded: if there is no room.
        """
        self.check_room(size_bytes)
        task = Task(self, work, size_bytes, done)
        self.tasks += 1
        self.held += size_bytes
        self._queue.put(task)  # type: ignore[arg-type]  # nothing is written to its results
        for thread in self._threads:
            if thread.ident is None:
                thread.start()
        return task

    def leave(self, size_bytes: int, seconds: float | None = None) -> None:
        """Discount a task that took `seconds`; None if it was cancelled before it began."""
        if seconds is not None:
            self._mean_s += MEAN_WEIGHT * (seconds - self._mean_s)
        self.tasks -= 1
        self.held -= size_bytes

    async def close(self, patience_s: float) -> bool:
        """End the threads after all queued work; False if that takes longer than `patience_s`."""
        deadline = time.monotonic() + patience_s
        for _ in self._threads:
            self._queue.put(None)
        while any(thread.is_alive() for thread in self._threads):
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(0.005)
        return True

    def _run(self) -> None:
        lower_priority()
        while (task := self._queue.get()) is not None:
            task.run()
            del task  # an idle thread must not keep the last request alive


def pool_of(cores: int, max_bytes: int) -> OffloadPool:
    """A pool with a thread for every two of the cores that the process may use."""
    threads = max(1, min(MAX_THREADS, cores // 2))
    return OffloadPool(threads, MAX_TASKS * threads, max_bytes)
