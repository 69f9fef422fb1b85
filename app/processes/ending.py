"""The end of the process: at once, if threads that nobody waits for may be in native code."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import NoReturn


def exit_with(code: int) -> NoReturn:
    """End the process with an exit code.

    A thread that loads a version, or hangs, is not waited for. Python's own end would stop it when
    it returns from native code, which aborts the process with exit code 134.
    """
    if not any(each.daemon for each in threading.enumerate()):
        sys.exit(code)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
