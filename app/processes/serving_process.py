"""Memory management and exit of a process that serves models."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable

import structlog

from app.errors import DeviceLost
from models.system.heap import trim

LOG = structlog.get_logger(__name__)
DEVICE_LOST_EXIT_CODE = 70  # EX_SOFTWARE of sysexits.h
DEVICE_LOST_GRACE_S = 1.0  # time for the errors to reach the callers
GC_THRESHOLD = 10_000  # allocations between two collections of the youngest objects; default 700


def calm_gc() -> None:
    """Keep the garbage collector from scanning modules and models repeatedly under load.

    Loaded objects stay, so they are frozen, which excludes them from collections. Reference
    counting frees the garbage of requests at once, so cycles are collected less often than usual.
    What loading has left is returned to the system.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 100)
    trim()


def give_memory_back() -> None:
    """Return the memory of a retired model to the system, if the allocator can."""
    gc.unfreeze()  # objects loaded at the start may be part of a cycle
    gc.collect()
    gc.freeze()
    trim()


def end_process(close: Callable[[], None], fault: DeviceLost) -> None:
    """End the process after a sticky CUDA error, for a supervisor to restart it.

    Args:
        close: closes the metrics; otherwise the worker's counts would lack this error.
        fault: the error.
    """
    LOG.critical("device_lost", fault=str(fault), exit_code=DEVICE_LOST_EXIT_CODE)

    def end() -> None:
        try:
            close()
        finally:
            os._exit(DEVICE_LOST_EXIT_CODE)

    asyncio.get_running_loop().call_later(DEVICE_LOST_GRACE_S, end)
