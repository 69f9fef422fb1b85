"""The outputs of a server, whose readers may be slow or gone: a full pipe stops nothing but itself.

While an event loop runs, each output has a thread that writes, and a bounded queue in front of it.
Before and after that, lines are written at once: a process that may fork has one thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import queue
import select
import stat
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TextIO

import structlog
from typing_extensions import Buffer

LOG = structlog.get_logger(__name__)
QUEUE_BYTES = 8 * 1024 * 1024  # per output; more is dropped
PATIENCE_S = 1.0  # how long a line waits without a thread, until the next one is written
PERIOD_S = 0.1  # between writes of a thread: for each, the event loop waits for the GIL
FLUSH_S = 2.0  # for the last lines, once the event loop has ended
NAMES = ("stderr", "stdout")  # if both are the same, its name in the log is the first


def unblock(descriptor: int) -> bool:
    """Let writes to a full pipe, socket or stopped terminal fail, instead of block.

    The flag belongs to what a process has opened, which it shares with those that it was started
    by. Linux can open a pipe or terminal again, for this process and its children.

    Returns:
        whether it was possible; not for a terminal of another user. Files always wait for a disk.
    """
    kind = os.fstat(descriptor).st_mode
    terminal = os.isatty(descriptor)
    waits_for_a_reader = terminal or stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)
    if not waits_for_a_reader or not os.get_blocking(descriptor):
        return True
    mode = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
    try:
        own = os.open(f"/proc/self/fd/{descriptor}", mode | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:  # a socket, another user's, or not Linux
        if not terminal:  # which a shell would share
            os.set_blocking(descriptor, False)
        return not terminal
    os.dup2(own, descriptor)
    os.close(own)
    return True


class Output(io.RawIOBase):
    """A descriptor that takes whole lines; while a thread writes them, nobody else waits.

    Args:
        descriptor: stays open.
        name: for the log.

    Attributes:
        dropped: lines that did not fit into the queue, or that could not be written.
    """

    def __init__(self, descriptor: int, name: str) -> None:
        self.dropped = 0
        self._descriptor = descriptor
        self.name = name
        self._lock = threading.RLock()  # a signal handler may log while its thread does
        self._entries: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._put = self._taken = 0  # bytes since the beginning
        self._full = False  # until half of the queue is written: one long gap, not many short ones
        self._rest = memoryview(b"")  # of the entry that is being written
        self._fails = False
        self._partly = False  # a part of it is written
        self._torn = False  # the rest of a line could not be written
        self._untold = 0  # dropped lines that the log does not mention yet
        self._patience_s = PATIENCE_S
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self._written_at = -PERIOD_S

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """The descriptor."""
        return self._descriptor

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return os.isatty(self._descriptor)

    def write(self, data: Buffer) -> int:
        """Write or queue lines, or drop them if the queue is full; raises no error."""
        entry = bytes(data)
        with self._lock:
            waiting = self._put - self._taken
            self._full = self._full or (waiting > 0 and waiting + len(entry) > QUEUE_BYTES)
            if self._full:
                self._drop(entry)
            else:
                self._put += len(entry)
                self._entries.put(entry)
            alone = self._thread is None
            if alone and not self._write_queued(self._patience_s):
                self._patience_s = 0.0
        if alone:
            self._tell()
        return len(entry)

    def start(self) -> None:
        """Leave writing to a thread."""
        self._ending.clear()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end once everything is written."""
        self._ending.set()
        self._entries.put(b"")

    def wait(self, limit_s: float) -> None:
        """Wait for the thread's end; if it does not end in time, it goes on."""
        if self._thread is not None:
            self._thread.join(max(0.0, limit_s))
            if not self._thread.is_alive():
                self._thread = None
                self._patience_s = PATIENCE_S
                with self._lock:  # what other threads have written meanwhile
                    self._write_queued(0.0)

    def _run(self) -> None:
        self._finish(None)  # what could not be written without a thread
        while not (self._ending.is_set() and self._entries.empty()):
            lines = self._entries.get()
            self._ending.wait(self._written_at + PERIOD_S - time.monotonic())
            while not self._entries.empty():
                entry = self._entries.get()
                if len(lines) + len(entry) > select.PIPE_BUF:  # other processes may write between
                    self._write_all(lines)
                    lines = b""
                lines += entry
            self._write_all(lines)
            self._written_at = time.monotonic()

    def _write_all(self, lines: bytes) -> None:
        self._begin(lines)
        self._finish(None)
        self._tell()

    def _write_queued(self, limit_s: float) -> bool:
        """Write what is queued; false if the output takes nothing for this long."""
        while self._finish(limit_s):
            if self._entries.empty():
                return True
            self._begin(self._entries.get())
        return False

    def _begin(self, entry: bytes) -> None:
        with self._lock:
            self._taken += len(entry)
            if self._put - self._taken <= QUEUE_BYTES / 2:
                self._full = False
        self._partly = False
        self._rest = memoryview(b"\n" + entry if self._torn and entry else entry)

    def _finish(self, limit_s: float | None) -> bool:
        """Write the rest of an entry; false if the output takes nothing for this long."""
        while self._rest:
            try:
                written = os.write(self._descriptor, self._rest)
            except BlockingIOError:
                if not self._is_read(limit_s):
                    return False
            except OSError:  # the reader has gone, or the disk is full
                self._fails = True
                self._torn = self._torn or self._partly
                self._drop(bytes(self._rest))
                self._rest = memoryview(b"")
            else:
                self._fails = self._torn = False
                self._partly = True
                self._rest = self._rest[written:]
        return True

    def _is_read(self, limit_s: float | None) -> bool:
        """Wait until the output takes more; false if it does not within this time."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        return bool(poll.poll(None if limit_s is None else 1000 * limit_s))

    def _drop(self, entry: bytes) -> None:
        lines = max(1, entry.count(b"\n"))
        with self._lock:
            self.dropped += lines
            self._untold += lines

    def _tell(self) -> None:
        """Log how many lines are missing, once others can be written again."""
        if not self._untold or self._full or self._fails:
            return
        with self._lock:
            lines, self._untold = self._untold, 0
        LOG.error("log_lines_dropped", lines=lines, output=self.name)


class Outputs:
    """The outputs of this process.

    Args:
        all_: each once.
    """

    def __init__(self, all_: Sequence[Output]) -> None:
        self._all = all_

    @property
    def dropped(self) -> int:
        """Lines dropped since the start."""
        return sum(each.dropped for each in self._all)

    @contextlib.contextmanager
    def in_threads(self) -> Iterator[None]:
        """Write in threads until the end of the context, which waits for what is queued."""
        for each in self._all:
            each.start()
        try:
            yield
        finally:
            deadline = time.monotonic() + FLUSH_S
            for each in self._all:
                each.stop()
            for each in self._all:
                each.wait(deadline - time.monotonic())


def take_over() -> Outputs:
    """Replace `sys.stdout` and `sys.stderr`, unless they belong to a program around this one."""
    found: list[Output] = []
    for name in NAMES:
        stream: TextIO = getattr(sys, name)
        inherited = isinstance(getattr(stream, "buffer", None), Output)  # by a fork
        if not inherited and stream is not getattr(sys, f"__{name}__"):
            continue
        descriptor = stream.fileno()
        unblock(descriptor)
        same = [each for each in found if os.path.sameopenfile(each.fileno(), descriptor)]
        output = same[0] if same else Output(descriptor, name)
        found += [] if same else [output]
        replaced = io.TextIOWrapper(
            output,  # not buffered, as with `python -u`
            encoding=stream.encoding,
            errors="backslashreplace",
            line_buffering=True,
        )
        setattr(sys, name, replaced)
    return Outputs(found)
