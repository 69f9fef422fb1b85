"""Work in other threads: begin it, bring its result to an event loop, lower its priority."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
# Unix priority, where 0 is normal and 19 the lowest: if no core is idle, serving goes first, and
# such work gets a share of a busy core.
NICENESS = 5


async def in_thread(work: Callable[[], T], unwanted: Callable[[T], None] | None = None) -> T:
    """Run long work in a thread of its own, which does not prevent the process from exiting.

    Args:
        work: the work.
        unwanted: called with its result if the wait was cancelled; None: nothing is.

    Raises:
        Exception: any exception of `work`.
    """
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    threading.Thread(target=delivering(work, future, unwanted), daemon=True).start()
    return await future


def delivering(
    work: Callable[[], T],
    future: asyncio.Future[T],
    unwanted: Callable[[T], None] | None = None,
) -> Callable[[], None]:
    """Return a function that runs the work and delivers its result or exception to the future.

    Args:
        work: the work.
        future: of the running event loop.
        unwanted: called with the result if the future is already done; None: nothing is.
    """
    loop = asyncio.get_running_loop()

    def deliver(result: T) -> None:
        if not future.done():
            future.set_result(result)
        elif unwanted is not None:
            unwanted(result)

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # passed to the awaiting task, not swallowed
            tell(loop, unless_done, future.set_exception, future, error)
        else:
            tell(loop, deliver, result)

    return run


def tell(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: Any) -> None:
    """Schedule a call on a loop from another thread."""
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(call, *arguments)


def unless_done(settle: Callable[[Any], None], future: asyncio.Future[Any], value: Any) -> None:
    """Settle a future, unless it is already done, for example cancelled."""
    if not future.done():
        settle(value)


def lower_priority() -> None:
    """Lower the priority of the calling thread, so that serving goes first if no core is idle.

    Threads that it starts inherit it, so they must not serve later.
    """
    if sys.platform == "linux":  # elsewhere this would change the whole process
        thread = threading.get_native_id()
        with contextlib.suppress(OSError):  # a sandbox may forbid it
            usual = os.getpriority(os.PRIO_PROCESS, thread)
            os.setpriority(os.PRIO_PROCESS, thread, min(19, usual + NICENESS))
