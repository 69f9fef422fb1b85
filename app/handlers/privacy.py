"""Keeps what this process knows from the processes that it starts."""

from __future__ import annotations

import ctypes
import sys

PR_SET_DUMPABLE = 4  # linux/prctl.h


def hide_memory() -> None:
    """Refuse other processes of this user this one's memory, environment and descriptors.

    On Linux only. /proc shows them to CAP_SYS_PTRACE alone, which root has outside containers.
    Debuggers and profilers that attach need it then, too, and the kernel writes no core dump.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
