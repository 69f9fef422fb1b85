"""Hands results of threads over to the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

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


async def in_thread(work: Callable[[], T], unwanted: Callable[[T], None]) -> T:
    """Run long work in a thread of its own, which does not prevent the process from exiting.

    Args:
        work: the work.
        unwanted: called with its result if the wait was cancelled.

    Raises:
        Exception: any exception of `work`.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(result: T) -> None:
        if future.done():
            unwanted(result)
        else:
            future.set_result(result)

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # passed to the awaiting task, not swallowed
            tell(loop, unless_done, future.set_exception, future, error)
        else:
            tell(loop, deliver, result)

    threading.Thread(target=run, daemon=True).start()
    return await future


def tell(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: Any) -> None:
    """Schedule a call on a loop from another thread."""
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(call, *arguments)


def unless_done(settle: Callable[[Any], None], future: asyncio.Future[Any], value: Any) -> None:
    """Settle a future, unless it is already done, for example cancelled."""
    if not future.done():
        settle(value)
