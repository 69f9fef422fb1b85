"""What a process gives up before it imports the code of a handler."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path

OPEN_FILES = 1024
NICENESS = 5  # below the server, which must answer others meanwhile
SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG in linux/prctl.h


def limit_process(parent: int) -> None:
    """Limit this process, which is the leader of its own group.

    It ends with its parent, is slower than the server, is the first to go when memory is short,
    leaves no core dump and opens few files.

    Args:
        parent: process id of the server.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        with suppress(OSError):  # no such file in some containers
            Path("/proc/self/oom_score_adj").write_text("1000")
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)
    with suppress(OSError):  # not allowed in some containers
        os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
