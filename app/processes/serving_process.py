"""What a process that serves models does to itself: to its memory, and at its end."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import sys
from collections.abc import Callable

import structlog

from app.errors import DeviceLost

LOG = structlog.get_logger(__name__)
DEVICE_LOST_EXIT_CODE = 70  # EX_SOFTWARE of sysexits.h
DEVICE_LOST_GRACE_S = 1.0  # time for the errors to reach their callers
GC_THRESHOLD = 10_000  # allocations between two collections of the youngest objects; default 700


def calm_gc() -> None:
    """Keep the garbage collector from scanning modules and models over and over under load.

    What is loaded by now stays, so it is frozen out of the collector's view. Garbage of requests is
    freed at once by reference counting, so cycles are collected less often than by default.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 100)


def give_memory_back() -> None:
    """Return the memory of a retired model to the system, where the allocator can."""
    gc.unfreeze()  # objects loaded at the start may be part of a cycle
    gc.collect()
    gc.freeze()
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):  # glibc only
            ctypes.CDLL(None).malloc_trim(0)


def end_process(close: Callable[[], None], fault: DeviceLost) -> None:
    """End the process, which a sticky CUDA error has poisoned; a supervisor restarts it.

    Args:
        close: closes the metrics; else its worker's counts would lack this error.
        fault: what happened.
    """
    LOG.critical("device_lost", fault=str(fault), exit_code=DEVICE_LOST_EXIT_CODE)

    def end() -> None:
        try:
            close()
        finally:
            os._exit(DEVICE_LOST_EXIT_CODE)

    asyncio.get_running_loop().call_later(DEVICE_LOST_GRACE_S, end)
