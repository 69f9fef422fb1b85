"""The resident memory of a process with its children, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MAX_PROCESSES = 1000
MAX_THREADS = 1000  # of a process, which may all have children


def memory_of(pid: int, enough: int) -> int:
    """Resident bytes of a process and its descendants; 0 if there is no such process.

    Takes some 20 us for each thread.

    Args:
        pid: of the process.
        enough: above this many, memory that they share counts once, as after a fork. That is
            slower, and may wait for their page tables.
    """
    family = [*_family(pid)]
    size = sum(map(_resident, family))
    return size if size <= enough else sum(map(_proportional, family))


def _resident(pid: int) -> int:
    with suppress(OSError, ValueError, IndexError):  # it has ended
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * PAGE_BYTES
    return 0


def _proportional(pid: int) -> int:
    with suppress(OSError, ValueError, IndexError):  # it has ended, or the kernel has no such file
        for line in Path(f"/proc/{pid}/smaps_rollup").read_bytes().splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) << 10
    return _resident(pid)


def _family(pid: int) -> Iterator[int]:
    waiting = [pid]
    for _ in range(MAX_PROCESSES):
        if not waiting:
            return
        each = waiting.pop()
        yield each
        with suppress(OSError):  # it has ended, or the kernel has no such file
            for thread in os.listdir(f"/proc/{each}/task")[:MAX_THREADS]:
                children = Path(f"/proc/{each}/task/{thread}/children").read_bytes()
                waiting += map(int, children.split())
