"""Work of requests that would block the event loop: done in threads, bounded in tasks and bytes."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from app.engine.execution.handover import tell
from app.engine.execution.proving import lower_priority
from app.errors import Overloaded

T = TypeVar("T")
AGAIN_S = 1.0  # a guess: how long other callers' work takes is not known
MAX_TASKS = 32  # for each thread; the bytes are bounded too
MAX_THREADS = 4


class Task(Generic[T]):
    """Work that waits for a thread, or that a thread is doing."""

    def __init__(
        self,
        pool: OffloadPool,
        work: Callable[[], T],
        size_bytes: int,
        done: Callable[[T | Exception], None],
    ) -> None:
        self._pool = pool
        self._work = [work]  # to pop from a list is atomic: the thread or `cancel` gets it
        self._size_bytes = size_bytes
        self._done: Callable[[T | Exception], None] | None = done
        self._loop = asyncio.get_running_loop()

    def cancel(self) -> None:
        """Drop the work, or its result if a thread has begun it; harmless when it is done."""
        self._done = None
        if self._work:
            self._work.clear()
            self._pool.leave(self._size_bytes)

    def run(self) -> None:
        """In the thread: do the work, unless it was cancelled."""
        try:
            work = self._work.pop()
        except IndexError:
            return
        result: T | Exception
        try:
            result = work()
        except Exception as error:  # handed to `done`
            result = error
        tell(self._loop, self._finish, result)

    def _finish(self, result: T | Exception) -> None:
        self._pool.leave(self._size_bytes)
        done, self._done = self._done, None
        if done is not None:
            done(result)


class OffloadPool:
    """Does work in threads of low priority. Its state belongs to the event loop.

    Only work that releases the GIL gains by it: native code that holds the GIL blocks the event
    loop from any thread.

    Args:
        threads: how many; they start with the first task.
        max_tasks: that wait or are being done.
        max_bytes: that these tasks hold.

    Attributes:
        threads: how many.
        tasks: that wait or are being done now.
        held: bytes that these hold.
    """

    def __init__(self, threads: int, max_tasks: int, max_bytes: int) -> None:
        self.threads = threads
        self.max_tasks = max_tasks
        self.max_bytes = max_bytes
        self.tasks = 0
        self.held = 0
        self._queue: queue.SimpleQueue[Task[object] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"offload-{index}", daemon=True)
            for index in range(threads)
        ]

    def check_room(self, size_bytes: int) -> None:
        """Return if another task would fit.

        Raises:
            Overloaded: it would not.
        """
        if self.tasks >= self.max_tasks or (self.tasks and self.held + size_bytes > self.max_bytes):
            raise Overloaded(
                f"{self.tasks} requests with {self.held} bytes are being decoded (limits "
                f"{self.max_tasks} and {self.max_bytes}); try again later",
                retry_after_s=AGAIN_S,
            )

    def start(
        self, work: Callable[[], T], size_bytes: int, done: Callable[[T | Exception], None]
    ) -> Task[T]:
        """Do `work` in a thread; then `done` gets its result, or what it raised, on the loop.

        Args:
            work: what to do.
            size_bytes: of what it holds.
            done: must not raise.

        Raises:
            Overloaded: there is no room.
        """
        self.check_room(size_bytes)
        task = Task(self, work, size_bytes, done)
        self.tasks += 1
        self.held += size_bytes
        self._queue.put(task)  # type: ignore[arg-type]  # nothing is put into its results
        for thread in self._threads:
            if thread.ident is None:
                thread.start()
        return task

    def leave(self, size_bytes: int) -> None:
        """A task has ended, or was cancelled before it began."""
        self.tasks -= 1
        self.held -= size_bytes

    async def close(self, patience_s: float) -> bool:
        """End the threads after what they have begun; False if that takes longer than this."""
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
    """A pool for a process that may count on so many cores: it takes half of them."""
    threads = max(1, min(MAX_THREADS, cores // 2))
    return OffloadPool(threads, MAX_TASKS * threads, max_bytes)
