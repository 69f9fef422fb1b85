"""A thread in which models are proved, while the replica serves others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from app.backends.base import Backend, Between, close_safely
from app.engine.replica_thread import Job, ReplicaThread
from app.errors import ReplicaError
from app.threads import delivering, lower_priority

T = TypeVar("T")


class ProvingThread:
    """Warms backends and replays examples on them, in parallel with a replica's thread.

    Args:
        replica: name of the replica that will run the backends.
        begin: called first in the thread, as in the replica's.

    Attributes:
        name: the name for logs, and for the watchdog.
    """

    def __init__(self, replica: str, begin: Callable[[], None]) -> None:
        self.name = f"{replica}, loading"
        self._begin = begin
        self._thread = ReplicaThread(f"loading-{replica}", self._begin_nicely)
        self._thread.start()

    @property
    def step(self) -> int | None:
        """Number of the current forward; None if there is none."""
        return self._thread.step

    def is_alive(self) -> bool:
        """Whether the thread still runs, which includes hanging."""
        return self._thread.is_alive()

    async def prove(self, backend: Backend, work: Callable[[Backend, Between], None]) -> None:
        """Run `work` in the thread.

        If it fails or is cancelled, the backend is closed, and the thread can prove no other one.

        Raises:
            ReplicaHangs: if the thread was given up.
            Exception: any exception of `work`.
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

        self._proof = call_in(self._thread, job)
        try:
            await self._proof
        except BaseException:
            self._thread.orphan()
            if not begun:
                close_safely(backend)
            raise

    def end(self) -> None:
        """End the thread after its proof."""
        self._thread.end()

    def give_up(self, fault: ReplicaError) -> None:
        """Give up a hanging thread: `prove` raises the fault; the thread cleans up if it can."""
        self._thread.orphan()
        if not self._proof.done():
            self._proof.set_exception(fault)

    def _begin_nicely(self) -> None:
        self._begin()
        lower_priority()


def call_in(thread: ReplicaThread, work: Callable[[], T]) -> asyncio.Future[T]:
    """Run work in a thread, after its queued jobs.

    Returns:
        a future of the running event loop with the result or exception of `work`.
    """
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    thread.do(Job(delivering(work, future), is_batch=False))
    return future
