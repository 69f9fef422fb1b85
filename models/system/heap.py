"""Returns freed memory to the system."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys


def collect() -> None:
    """Free what only cycles refer to, such as the graphs of compilers, and `trim`."""
    gc.collect()
    trim()


def trim() -> None:
    """Return what is free to the system, if the allocator can; glibc keeps most of it otherwise."""
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):  # another library than glibc
            ctypes.CDLL(None).malloc_trim(0)
