"""Workers that are forks of their parent, which share its imported modules in memory."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from socket import socket

import structlog

LOG = structlog.get_logger(__name__)
POLL_S = 0.002
THREADS = Path("/proc/self/task")


class Fork:
    """A forked process with the methods of `subprocess.Popen` that a supervisor uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def kill(self) -> None:
        """Send SIGKILL, unless the process is known to have ended."""
        if self._code is None:
            with suppress(ProcessLookupError):  # the kernel has reaped it; see `wait`
                os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process to end; returns the exit code, or the negated number of a signal.

        If SIGCHLD is ignored, which a process inherits, the kernel discards exit codes. The result
        is then 0, as in `subprocess`.

        Raises:
            subprocess.TimeoutExpired: if it did not end in time.
        """
        began = time.monotonic()
        while self._code is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                pid, status = self.pid, 0
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
            elif timeout is not None and time.monotonic() - began > timeout:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            else:
                time.sleep(POLL_S)
        return self._code


def is_safe() -> bool:
    """Whether this process has a single thread, so that no other thread can hold a lock."""
    with suppress(OSError):  # not Linux
        return len(list(THREADS.iterdir())) == 1
    return False


def fork(serve: Callable[[], int], unwanted: Iterable[socket]) -> Fork:
    """Run a function in a fork of this process, in a new process group.

    Args:
        serve: returns the exit code.
        unwanted: sockets of this process that the fork must close.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    gc.collect()
    gc.freeze()  # a collection writes to every object that it visits, which would copy its page
    pid = os.fork()
    if pid:
        return Fork(pid)
    code = 1
    try:
        os.setpgid(0, 0)  # Ctrl-C reaches only the parent
        for each in unwanted:
            each.close()
        code = serve()
    except BaseException:  # the parent's handlers must not run here
        LOG.exception("worker_failed")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
