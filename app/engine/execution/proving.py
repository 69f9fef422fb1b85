"""A thread in which a model is proved, while the replica serves the other models."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from app.backends.base import Backend, Between, close_safely
from app.engine.execution.handover import tell, unless_done
from app.engine.execution.replica_thread import Job, ReplicaThread
from app.errors import ReplicaError

T = TypeVar("T")
# Of a Unix system's priorities, where 0 is usual and 19 the lowest: where no core is idle serving
# comes first, and the proof gets a share of a busy one.
NICENESS = 5


class ProvingThread:
    """Warms one backend and replays examples on it, next to the thread of a replica.

    Args:
        replica: in which the backend will run.
        begin: called first in the thread, as in the replica's.

    Attributes:
        name: for logs, and for the watchdog.
    """

    def __init__(self, replica: str, begin: Callable[[], None]) -> None:
        self.name = f"{replica}, loading"
        self._begin = begin
        self._thread = ReplicaThread(f"loading-{replica}", self._begin_nicely)

    @property
    def step(self) -> int | None:
        """Number of the forward that it is in; None: in none."""
        return self._thread.step

    def is_alive(self) -> bool:
        """Whether it works, or hangs."""
        return self._thread.is_alive()

    async def prove(self, backend: Backend, work: Callable[[Backend, Between], None]) -> None:
        """Run `work` in the thread. Where that fails or is cancelled, close the backend.

        Raises:
            ReplicaHangs: if the thread was given up.
            Exception: whatever `work` raises.
        """
        begun = False

        def job() -> None:
            nonlocal begun
            begun = True
            try:
                work(backend, self._thread.beat)
            except BaseException:
                close_safely(backend)
                raise

        self._thread.start()
        self._proof = call_in(self._thread, job)
        try:
            await self._proof
        except BaseException:
            self._thread.orphan()
            if not begun:
                close_safely(backend)
            raise
        self._thread.end()

    def give_up(self, fault: ReplicaError) -> None:
        """Give up a thread that hangs: `prove` raises the fault; the thread cleans up if it can."""
        self._thread.orphan()
        if not self._proof.done():
            self._proof.set_exception(fault)

    def _begin_nicely(self) -> None:
        self._begin()
        lower_priority()


def lower_priority() -> None:
    """Let serving go first, where no core is idle: lowers the priority of the calling thread."""
    if sys.platform == "linux":  # elsewhere it would be the priority of the whole process
        thread = threading.get_native_id()
        with contextlib.suppress(OSError):  # a sandbox may forbid it
            usual = os.getpriority(os.PRIO_PROCESS, thread)
            os.setpriority(os.PRIO_PROCESS, thread, min(19, usual + NICENESS))


def call_in(thread: ReplicaThread, work: Callable[[], T]) -> asyncio.Future[T]:
    """Run something in a thread, after what is queued there.

    Returns:
        what comes of it, or what it raises; of the running event loop.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def job() -> None:
        try:
            result = work()
        except BaseException as error:  # handed to the awaiting side, not swallowed
            tell(loop, unless_done, future.set_exception, future, error)
        else:
            tell(loop, unless_done, future.set_result, future, result)

    thread.do(Job(job, is_batch=False))
    return future
