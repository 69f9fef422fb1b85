"""One of several processes behind one port: its place, and its wire to the parent.

The parent sends connections and the order to drain; the worker tells how far it has come. What the
two say to each other is a byte a message, so that nothing has to be framed.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import socket
import sys
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path

CONNECTION = b"c"  # to a worker: with the descriptor of an accepted connection
DRAIN = b"d"  # to a worker: every connection that it will get has come before this
LISTENS = b"u"  # to the parent: answers, though its models may be loading still
READY = b"l"  # to the parent: every model is loaded
NOT_READY = b"n"  # to the parent: loading has ended, and not every model is there
COUNTER_BYTES = 8
PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker stands; on its command line as `INDEX/OF:PARENT:CHANNEL:FOLDER`.

    Attributes:
        index: which worker, from 0; a restarted one takes the place of the one that died.
        of: how many there are.
        parent: process id.
        channel: descriptor of the socket to the parent.
        folder: what the processes share.
    """

    index: int
    of: int
    parent: int
    channel: int
    folder: Path

    def __str__(self) -> str:
        """As on the command line."""
        return f"{self.index}/{self.of}:{self.parent}:{self.channel}:{self.folder}"

    @classmethod
    def parse(cls, text: str) -> Place:
        """Read what `str` wrote.

        Raises:
            ValueError: if it did not write this.
        """
        which, parent, channel, folder = text.split(":", 3)
        index, of = which.split("/")
        return cls(int(index), int(of), int(parent), int(channel), Path(folder))


class ClosedConnections:
    """How many connections each worker has closed: written by it, read by the parent, no message.

    Args:
        folder: what the processes share; the file in it is made when it is not there.
        workers: how many there are.
    """

    def __init__(self, folder: Path, workers: int) -> None:
        with (folder / "closed").open("a+b") as file:
            file.truncate(workers * COUNTER_BYTES)
            self._counts = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")

    def __getitem__(self, index: int) -> int:
        """Of one worker, since it was started."""
        return self._counts[index]

    def add(self, index: int) -> None:
        """One more; called by that worker alone."""
        self._counts[index] += 1

    def reset(self, index: int) -> None:
        """That worker has ended, and all its connections with it."""
        self._counts[index] = 0


class OpenConnections(set[Hashable]):
    """uvicorn's set of the connections that it serves; each one that leaves it is counted."""

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self._worker = worker

    def discard(self, connection: Hashable) -> None:
        """It was closed."""
        if connection in self:
            self._worker.connection_closed()
        super().discard(connection)


class Worker:
    """What a worker process has of its parent; made once, before anything is loaded.

    Args:
        place: where it stands.
    """

    def __init__(self, place: Place) -> None:
        self.index = place.index
        self.of = place.of
        self.folder = place.folder
        # The descriptor itself stays open until the process has ended: its end tells the parent.
        self.channel = socket.socket(fileno=os.dup(place.channel))
        self.channel.setblocking(False)
        self._closed = ClosedConnections(place.folder, place.of)

    def tell(self, news: bytes) -> None:
        """Tell the parent; if it is gone, so are we in a moment."""
        self.channel.send(news)

    def connection_closed(self) -> None:
        """The parent gives new connections to whoever has the fewest."""
        self._closed.add(self.index)


def obey_parent_alone(parent: int) -> None:
    """End when the parent ends, however it does; leave SIGTERM and SIGINT to it.

    Both are sent to a whole group of processes by some supervisors; the parent says when it is our
    turn, after the last connection.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":  # elsewhere the end of the channel tells, once the loop runs
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was faster
        os._exit(1)
