"""Ends the process when its event loop hangs, but not when the process was paused.

While native code holds the GIL no Python code runs, so this works with signals whose handlers are
functions of libc. The loop keeps setting a timer. When it expires, the handler of its signal is
`alarm`: called with the number of the signal, it starts a second timer of that many seconds. The
signal of that one writes all stacks and ends the process.

While a process is paused (SIGSTOP, `docker pause`, a virtual machine that moves) its signals wait.
When it goes on, the first handler runs, and the loop has those seconds to set both timers again. A
default action instead of the second handler would not end process 1 of a container.
"""

from __future__ import annotations

import ctypes
import faulthandler
import signal
import sys
import time


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

    On Linux it takes SIGUSR1 and SIGALRM, waits 10 s longer than the limit (`alarm`, the handler of
    SIGUSR1, takes the signal's number for seconds), and the exit code is 14 (the number of
    SIGALRM). Elsewhere, and with glibc before 2.34, a timer of faulthandler ends the process, with
    exit code 1, even after a pause.

    Args:
        limit_s: how long the loop may stand still, in seconds.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._timer = ctypes.c_void_p()
        self._of_kernel = sys.platform == "linux" and self._create()

    def _create(self) -> bool:
        """Set the handlers and create the timer; false if the system gives none."""
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
        faulthandler.register(signal.SIGALRM, file=sys.stderr, chain=True)  # then `_exit`
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1, signal.SIGALRM})
        return True

    def rewind(self) -> None:
        """Start again; called every second, since a handler may run late in another thread."""
        if self._of_kernel:
            self._set(self._limit_s)
        else:
            faulthandler.dump_traceback_later(self._limit_s, exit=True, file=sys.stderr)

    def cancel(self) -> None:
        """Stop for good."""
        if self._of_kernel:
            self._set(0.0)
        else:
            faulthandler.cancel_dump_traceback_later()

    def _set(self, seconds: float) -> None:
        whole, part = divmod(seconds, 1.0)
        times = _Times((0, 0), (int(whole), int(part * 1e9)))
        self._libc.timer_settime(self._timer, 0, ctypes.byref(times), None)
        self._libc.alarm(0)
