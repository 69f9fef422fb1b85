"""One of several processes behind one port: its place, and its channel to the parent.

The parent sends connections and the order to drain; the worker reports its progress. Each message
is one byte, so no framing is needed.
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

CONNECTION = b"c"  # to a worker: carries the descriptor of an accepted connection
GRPC_CONNECTION = b"g"  # to a worker: the same, of the port for gRPC
ALL_LOADED = b"a"  # to a worker: every living worker has tried to load its models
DRAIN = b"d"  # to a worker: no connection follows this
LISTENS = b"u"  # to the parent: the worker answers, though its models may still be loading
READY = b"l"  # to the parent: every model is loaded
NOT_READY = b"n"  # to the parent: loading has ended, but not every model is loaded
COUNTER_BYTES = 8
PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True, slots=True)
class Place:
    """A worker's place; on its command line as `INDEX/OF:PARENT:CHANNEL:FOLDER`.

    Attributes:
        index: number of the worker, from 0; a restarted worker keeps it.
        of: number of workers.
        parent: the parent's process id.
        channel: descriptor of the socket to the parent.
        folder: shared by the processes.
    """

    index: int
    of: int
    parent: int
    channel: int
    folder: Path

    def __str__(self) -> str:
        """The form on the command line."""
        return f"{self.index}/{self.of}:{self.parent}:{self.channel}:{self.folder}"

    @classmethod
    def parse(cls, text: str) -> Place:
        """Parse the form on the command line.

        Raises:
            ValueError: if the text is malformed.
        """
        which, parent, channel, folder = text.split(":", 3)
        index, of = which.split("/")
        return cls(int(index), int(of), int(parent), int(channel), Path(folder))


class ClosedConnections:
    """Counts of closed connections in shared memory: each worker writes its own, the parent reads.

    Args:
        folder: shared by the processes; the file is created there if it is missing.
        workers: number of workers.
    """

    def __init__(self, folder: Path, workers: int) -> None:
        with (folder / "closed").open("a+b") as file:
            file.truncate(workers * COUNTER_BYTES)
            self._counts = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")

    def __getitem__(self, index: int) -> int:
        """Connections closed by one worker since its start."""
        return self._counts[index]

    def add(self, index: int) -> None:
        """Count one more; called only by this worker."""
        self._counts[index] += 1

    def reset(self, index: int) -> None:
        """Reset the count of a worker that has ended, along with its connections."""
        self._counts[index] = 0


class OpenConnections(set[Hashable]):
    """uvicorn's set of open connections; counts each one that is removed."""

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self._worker = worker

    def discard(self, connection: Hashable) -> None:
        """Count a connection that was closed."""
        if connection in self:
            self._worker.connection_closed()
        super().discard(connection)


class Worker:
    """A worker's view of its parent; created once, before anything is loaded.

    Args:
        place: the worker's place.
    """

    def __init__(self, place: Place) -> None:
        self.index = place.index
        self.of = place.of
        self.folder = place.folder
        # The descriptor stays open until the process ends: its end notifies the parent.
        self.channel = socket.socket(fileno=os.dup(place.channel))
        self.channel.setblocking(False)
        self._closed = ClosedConnections(place.folder, place.of)

    def tell(self, news: bytes) -> None:
        """Send the parent a message; if the parent has ended, this process will end soon."""
        self.channel.send(news)

    def connection_closed(self) -> None:
        """Count a closed connection: the parent prefers the worker with the fewest open ones."""
        self._closed.add(self.index)


def obey_parent_alone(parent: int) -> None:
    """End when the parent ends, for any reason; leave SIGTERM and SIGINT to the parent.

    Some supervisors send both to a whole group of processes; the parent orders its workers to stop,
    after the last connection.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # drops a pending signal
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))  # see the parent
    if sys.platform == "linux":  # on other systems the loop notices that the channel closed
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before that
        os._exit(1)
