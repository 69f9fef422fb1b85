"""Becomes the server of a run, `python -m app`, which ends with the process that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG in linux/prctl.h; exec keeps it

if __name__ == "__main__":
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):  # it ended before the line above
        sys.exit(1)
    # Both are ours: this interpreter, and the server.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "app"])  # nosec B606
