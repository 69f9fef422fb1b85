"""Returns freed memory to the system."""

from __future__ import annotations

import contextlib
import ctypes
import sys


def trim() -> None:
    """Return what is free to the system, if the allocator can; glibc keeps most of it otherwise."""
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):  # another library than glibc
            ctypes.CDLL(None).malloc_trim(0)
