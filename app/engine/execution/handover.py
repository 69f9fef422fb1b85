"""How what a thread has made gets back to the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Handover(Generic[T]):
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
        self._finished = False
        self._results: queue.SimpleQueue[T] = queue.SimpleQueue()
        # To wait at the queue would hang on Python 3.11 and 3.12 where a signal outlasts the rest.
        self._given = threading.Lock()
        self._given.acquire()

    def give(self, result: T) -> None:
        """In the thread."""
        self._results.put(result)
        self._given.release()
        if not self._awaited:
            tell(self._loop, self._take)

    def wait(self, block_s: float) -> None:
        """On the loop: stand still for the result, and finish it if it comes in time."""
        try:
            self._given.acquire(timeout=block_s)
        finally:
            self._awaited = False  # a later `give` tells the loop; what is there now is taken
            try:
                self._take()
            except Exception as error:  # as the loop does for what it calls
                context = {"message": "a result could not be taken", "exception": error}
                self._loop.call_exception_handler(context)

    def settle(self, result: T) -> None:
        """On the loop: finish with this result; whatever the thread still gives comes too late."""
        if not self._finished:
            self._finished = True
            self._finish(result)

    def _take(self) -> None:
        """Finish the result, if it is there and was not taken before."""
        try:
            result = self._results.get_nowait()
        except queue.Empty:
            return
        self.settle(result)


async def in_thread(work: Callable[[], T], unwanted: Callable[[T], None]) -> T:
    """Run something long in a thread of its own that does not keep the process from ending.

    Args:
        work: what to do.
        unwanted: gets its result if the wait was cancelled.

    Raises:
        Exception: whatever `work` raises.
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
        except BaseException as error:  # handed to the awaiting side, not swallowed
            tell(loop, unless_done, future.set_exception, future, error)
        else:
            tell(loop, deliver, result)

    threading.Thread(target=run, daemon=True).start()
    return await future


def tell(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: Any) -> None:
    """Have something called on a loop, from another thread."""
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(call, *arguments)


def unless_done(settle: Callable[[Any], None], future: asyncio.Future[Any], value: Any) -> None:
    """Settle a future that may have been given up meanwhile."""
    if not future.done():
        settle(value)
