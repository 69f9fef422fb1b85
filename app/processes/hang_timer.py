"""Timer that ends the process if its event loop hangs, but not if the process was paused.

While native code holds the GIL, no Python code runs, so the timer uses signals whose handlers are
libc functions. The loop resets a first timer regularly. If that timer expires, the handler of its
signal is `alarm`: called with the signal's number, it starts a second timer of that many seconds.
The signal of the second timer writes all stacks and ends the process.

While a process is paused (SIGSTOP, `docker pause`, a virtual machine that moves), its signals wait.
When it resumes, the first handler runs, and the loop has these seconds to reset both timers. A
default action instead of the second handler would not end process 1 of a container.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import time

from app.outputs import unblock


class _Event(ctypes.Structure):
    """`struct sigevent`; zero in `notify` means a signal."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_char * 48),
    )


class _Times(ctypes.Structure):
    """`struct itimerspec`: seconds and nanoseconds."""

    _fields_ = (("interval", ctypes.c_long * 2), ("value", ctypes.c_long * 2))


class HangTimer:
    """Ends the process, with all stacks on stderr, if `rewind` is not called for too long.

    On Linux it uses SIGUSR1 and SIGALRM and waits 10 s longer than the limit, because `alarm`, the
    handler of SIGUSR1, interprets the signal's number as seconds. The exit code is 14, the number
    of SIGALRM. On other systems and with glibc before 2.34, a timer of faulthandler ends the
    process with exit code 1, even after a pause.

    Args:
        limit_s: how long the loop may block, in seconds.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._timer = ctypes.c_void_p()
        # They are written before the process ends, which a reader must not delay.
        can_write = unblock(sys.stderr.fileno())
        self._stacks = sys.stderr if can_write else open(os.devnull, "w")  # noqa: SIM115
        self._of_kernel = sys.platform == "linux" and self._create()

    def _create(self) -> bool:
        """Set the handlers and create the timer; false if the system has none."""
        self._libc = libc = ctypes.CDLL(None)
        if not hasattr(libc, "timer_create"):  # glibc before 2.34 has it in another library
            return False
        event = _Event(signal=signal.SIGUSR1)
        created = libc.timer_create(
            time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._timer)
        )
        if created != 0:
            return False
        libc.signal(signal.SIGUSR1, ctypes.cast(libc.alarm, ctypes.c_void_p))
        libc.signal(signal.SIGALRM, ctypes.cast(libc._exit, ctypes.c_void_p))
        faulthandler.register(signal.SIGALRM, file=self._stacks, chain=True)  # then `_exit`
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1, signal.SIGALRM})
        return True

    def rewind(self) -> None:
        """Restart the timer, every second: a handler may run late in another thread."""
        if self._of_kernel:
            self._set(self._limit_s)
        else:
            faulthandler.dump_traceback_later(self._limit_s, exit=True, file=self._stacks)

    def cancel(self) -> None:
        """Stop permanently."""
        if self._of_kernel:
            self._set(0.0)
        else:
            faulthandler.cancel_dump_traceback_later()

    def _set(self, seconds: float) -> None:
        whole, part = divmod(seconds, 1.0)
        times = _Times((0, 0), (int(whole), int(part * 1e9)))
        self._libc.timer_settime(self._timer, 0, ctypes.byref(times), None)
        self._libc.alarm(0)
