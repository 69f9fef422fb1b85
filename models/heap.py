"""Returns freed memory to the system, if the allocator is glibc's."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import threading
from collections.abc import Iterator

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # mallopt(3); Python has no names for them
LARGE = 256 << 10  # bytes of a block that gets a mapping of its own while weights are loaded
# The most to which glibc raises its thresholds while large blocks are freed; it leaves them alone
# once one is set.
USUAL_MMAP, USUAL_TRIM = 32 << 20, 64 << 20
_LOCK = threading.Lock()
_loading = 0  # how many threads are inside `own_mappings`


def collect() -> None:
    """Free what only cycles refer to, such as the graphs of compilers, and `trim`."""
    gc.collect()
    trim()


def trim() -> None:
    """Return what is free to the system; most of it is kept otherwise."""
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):  # another library than glibc
            ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def own_mappings() -> Iterator[None]:
    """Inside, give each large block a mapping of its own, which is returned as soon as it is freed.

    What is free at the end of a thread's heap is kept, up to 64 MiB for each heap, even by `trim`.
    Weights that are loaded in ever new threads would leave much of it. This holds for blocks that
    any thread allocates meanwhile.
    """
    _set_thresholds(1)
    try:
        yield
    finally:
        _set_thresholds(-1)


def _set_thresholds(more: int) -> None:
    global _loading  # noqa: PLW0603
    with _LOCK:
        _loading += more
        if sys.platform == "linux":
            with contextlib.suppress(AttributeError):  # another library than glibc
                mallopt = ctypes.CDLL(None).mallopt
                mallopt(M_TRIM_THRESHOLD, USUAL_TRIM)
                mallopt(M_MMAP_THRESHOLD, LARGE if _loading else USUAL_MMAP)
