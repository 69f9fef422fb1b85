"""Events of the log that every worker has, such as a loaded model: the parent logs each once.

All workers write to one socket, a line of JSON for each event. The parent logs an event when the
first worker has it, and again only after a worker has it for a second time.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from collections.abc import Callable, Mapping

import structlog

LOG = structlog.get_logger(__name__)
MISTAKE = "mistake"  # the level of what a user did wrong, which is a line on standard error
MOST_BYTES = 4096  # of an event; a socket takes so few bytes whole or not at all
MOST_KNOWN = 1024  # events that only some of the workers have had
READ_BYTES = 65_536
SAME = (
    "event",
    "model",
    "handler",
    "problem",
    "reasons",
    "names",
)  # the fields by which events are equal


def pass_on(descriptor: int, worker: int, level: str, event: Mapping[str, object]) -> bool:
    """Write an event to the parent; false if it is too long, or the parent does not read."""
    line = json.dumps([worker, level, event], default=str).encode() + b"\n"
    if len(line) > MOST_BYTES:
        return False
    try:
        os.write(descriptor, line)
    except OSError:  # the socket is full, or the parent has ended
        return False
    return True


class News:
    """The parent's end of the socket.

    Args:
        workers: number of workers.
        is_late: whether a worker repeats what others have had, because it replaces another one.

    Attributes:
        reading: the end that the parent reads.
        writing: the end that the workers inherit.
    """

    def __init__(self, workers: int, is_late: Callable[[int], bool]) -> None:
        self.reading, self.writing = socket.socketpair()
        self.reading.setblocking(False)
        self.writing.setblocking(False)
        self._workers = workers
        self._is_late = is_late
        self._rest = b""
        self._known: dict[str, set[int]] = {}  # the workers that have had an event

    def close(self) -> None:
        """Close both ends."""
        self.reading.close()
        self.writing.close()

    def read(self) -> None:
        """Log what has arrived."""
        with contextlib.suppress(BlockingIOError):
            while data := self.reading.recv(READ_BYTES):
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    worker, level, event = json.loads(line)
                    if not self._is_new(worker, level, event):
                        continue
                    if level == MISTAKE:
                        sys.stderr.write(f"torchlane: {event['problem']}\n")
                    else:
                        getattr(LOG, level)(event.pop("event"), **event)

    def _is_new(self, worker: int, level: str, event: Mapping[str, object]) -> bool:
        if level == "info" and self._is_late(worker):
            return False
        same = json.dumps([event.get(name) for name in SAME])
        workers = self._known.setdefault(same, set())
        is_repeated = worker in workers
        if is_repeated:
            workers.clear()
        is_new = not workers
        workers.add(worker)
        if len(workers) == self._workers or len(self._known) > MOST_KNOWN:
            del self._known[same]
        return is_new
