"""What the processes of handlers print, as lines of the log, bounded in length and rate."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

import structlog

from app.telemetry.line_rate import LineRate

LOG = structlog.get_logger(__name__)
LINE_BYTES = 4 << 10  # of a line; what follows is left out
LINES = 100  # at once, and in each second
READ_BYTES = 64 << 10  # a full pipe
BYTES_PER_S = (
    32 << 20
)  # read at most: a process that prints on and on waits, as for a slow terminal
PAUSE_S = 0.1
TELL_S = 1.0  # from the first line that is left out to the line that says how many


class Output:
    """Reads a pipe until its other end is closed.

    Args:
        descriptor: of the pipe; closed here.
        labels: fields of each line in the log.
        dropped: is told the number of lines that were not logged.
    """

    def __init__(
        self, descriptor: int, labels: dict[str, object], dropped: Callable[[int], None]
    ) -> None:
        self._descriptor = descriptor
        self._labels = labels
        self._dropped = dropped
        self._rate = LineRate(LINES, LINES)
        self._line = b""  # the beginning of a line
        self._skipped = 0  # lines
        self._budget = BYTES_PER_S
        self._since = time.monotonic()
        self._telling: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._read)

    def close(self) -> None:
        """Log what is there, and close the pipe; harmless if it is closed."""
        if self._descriptor < 0:
            return
        self._loop.remove_reader(self._descriptor)
        if self._timer is not None:
            self._timer.cancel()
        for _ in range(16):  # a pipe has 16 pages, and another process may still write to it
            try:
                data = os.read(self._descriptor, READ_BYTES)
            except BlockingIOError:
                break
            if not data:
                break
            self._take(data)
        if self._line:
            self._tell(self._line)
        self._tell_skipped()
        os.close(self._descriptor)
        self._descriptor = -1

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self.close()
            return
        self._take(data)
        now = time.monotonic()
        self._budget -= len(data)
        if now - self._since > 1.0:
            self._budget, self._since = BYTES_PER_S, now
        elif self._budget <= 0:
            self._loop.remove_reader(self._descriptor)
            self._timer = self._loop.call_later(PAUSE_S, self._resume)

    def _resume(self) -> None:
        self._timer = None
        self._budget += int(BYTES_PER_S * PAUSE_S)
        self._loop.add_reader(self._descriptor, self._read)

    def _take(self, data: bytes) -> None:
        *lines, rest = (self._line + data).split(b"\n", LINES)
        for each in lines:
            self._tell(each)
        # The rest has further lines only if there are more of them than can be logged.
        skipped, separator, last = rest.rpartition(b"\n")
        if separator:
            self._skip(skipped.count(b"\n") + 1)
        self._line = last[:LINE_BYTES]

    def _tell(self, line: bytes) -> None:
        if not self._rate.allows(time.monotonic()):
            self._skip(1)
            return
        text = line[:LINE_BYTES].decode(errors="backslashreplace").rstrip()
        if text:
            LOG.info("handler_output", **self._labels, line=text)

    def _skip(self, lines: int) -> None:
        self._skipped += lines
        if self._telling is None:
            self._telling = self._loop.call_later(TELL_S, self._tell_skipped)

    def _tell_skipped(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
            LOG.warning("handler_output_dropped", **self._labels, lines=self._skipped)
            self._dropped(self._skipped)
            self._skipped = 0
