"""One of several processes behind one port: its place, and its channel to the parent.

The parent sends connections and the order to drain; the worker reports its progress. Each message
is one byte, so no framing is needed. What they share beyond that is in files without a name.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
import sys
from collections.abc import Hashable, Iterable, Iterator, MutableSet
from dataclasses import dataclass
from typing import NamedTuple

from app.shared_file import SharedFile

CONNECTION = b"c"  # to a worker: carries the descriptor of an accepted connection
GRPC_CONNECTION = b"g"  # to a worker: the same, of the port for gRPC
ALL_LOADED = b"a"  # to a worker: every living worker has tried to load its models
DRAIN = b"d"  # to a worker: no connection follows this
LISTENS = b"u"  # to the parent: the worker answers, though its models may still be loading
# To the parent, once loading has ended and after each change:
READY = b"l"  # the models work that this worker needs, and all others that should
PARTLY_READY = b"p"  # the models work that it needs, but other ones do not
NOT_READY = b"n"  # some of the models do not work that it needs
FULL = b"f"  # to the parent: no descriptor is free for another connection
ROOM = b"r"  # to the parent: connections may follow again
SIGNALS = (signal.SIGTERM, signal.SIGINT)  # that stop a server
COUNT = struct.Struct("=Q")
PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Shared(NamedTuple):
    """What the parent and its workers share; on a command line as descriptors with commas.

    Attributes:
        connections: see `ClosedConnections`.
        overrides: requests of an administrator.
        profile: locked while a profile is recorded.
        claims: see `Claims`.
        releases: locked by the worker that judges releases.
        metrics: values of each worker, and last those of the parent.
        differing: inputs that each worker keeps, see `Differing`.
    """

    connections: SharedFile
    overrides: SharedFile
    profile: SharedFile
    claims: SharedFile
    releases: SharedFile
    metrics: tuple[SharedFile, ...]
    differing: tuple[SharedFile, ...]

    def __str__(self) -> str:
        """The form on the command line."""
        return ",".join(map(str, self.descriptors()))

    @classmethod
    def create(cls, workers: int) -> Shared:
        """Create empty files for a number of workers.

        Raises:
            OSError: if that is impossible.
        """
        made = cls._of([SharedFile.create() for _ in range(5 + workers + 1 + workers)])
        made.connections.write(bytes((workers + 1) * COUNT.size))  # so that no later write fails
        return made

    @classmethod
    def parse(cls, text: str) -> Shared:
        """Parse the form on the command line.

        Raises:
            ValueError: if the text is malformed.
        """
        return cls._of(SharedFile(int(each)) for each in text.split(","))

    @classmethod
    def _of(cls, files: Iterable[SharedFile]) -> Shared:
        connections, overrides, profile, claims, releases, *of_each = files
        workers = len(of_each) // 2
        metrics, differing = tuple(of_each[: workers + 1]), tuple(of_each[workers + 1 :])
        return cls(connections, overrides, profile, claims, releases, metrics, differing)

    def descriptors(self) -> list[int]:
        """The descriptors of all files."""
        *single, metrics, differing = self
        return [file.descriptor for file in (*single, *metrics, *differing)]

    def close(self) -> None:
        """Close all files."""
        for each in self.descriptors():
            os.close(each)


@dataclass(frozen=True, slots=True)
class Place:
    """A worker's place; on its command line as `INDEX/OF:PARENT:CHANNEL:SHARED`.

    Attributes:
        index: number of the worker, from 0; a restarted worker keeps it.
        of: number of workers.
        parent: the parent's process id.
        channel: descriptor of the socket to the parent.
        news: descriptor of the socket for news, the same for all workers; see `app.processes.news`.
        shared: by the parent and all workers.
    """

    index: int
    of: int
    parent: int
    channel: int
    news: int
    shared: Shared

    def __str__(self) -> str:
        """The form on the command line."""
        return f"{self.index}/{self.of}:{self.parent}:{self.channel}:{self.news}:{self.shared}"

    @classmethod
    def parse(cls, text: str) -> Place:
        """Parse the form on the command line.

        Raises:
            ValueError: if the text is malformed.
        """
        which, parent, channel, news, shared = text.split(":", 4)
        index, of = which.split("/")
        sockets = int(channel), int(news)
        return cls(int(index), int(of), int(parent), *sockets, Shared.parse(shared))


class ClosedConnections:
    """Counts of closed connections: each worker writes its own, the parent reads all.

    The parent also writes here that it stops: a worker without descriptors cannot receive the order
    to drain, because connections precede it in the channel.

    Args:
        file: the same in all processes.
        workers: number of workers.
    """

    def __init__(self, file: SharedFile, workers: int) -> None:
        self._file = file
        self._workers = workers

    def counts(self) -> tuple[int, ...]:
        """Connections closed by each worker since its start."""
        return self._read()[: self._workers]

    def put(self, index: int, count: int) -> None:
        """Replace the count of a worker; called by it, and by the parent after its end."""
        self._file.write(COUNT.pack(count), index * COUNT.size)

    @property
    def parent_stops(self) -> bool:
        """Whether the parent has ordered all workers to drain."""
        return bool(self._read()[self._workers])

    def stop(self) -> None:
        """Tell the workers that the parent has ordered them to drain."""
        self.put(self._workers, 1)

    def _read(self) -> tuple[int, ...]:
        return struct.unpack(f"={self._workers + 1}Q", self._file.read())


class OpenConnections(MutableSet[Hashable]):
    """uvicorn's set of open connections; counts each one that is removed.

    It is no subclass of `set`: machine code would call the methods of `set` itself.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._open: set[Hashable] = set()

    def __contains__(self, connection: object) -> bool:
        return connection in self._open

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._open)

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: Hashable) -> None:
        """Add a connection that was opened."""
        self._open.add(connection)

    def discard(self, connection: Hashable) -> None:
        """Count a connection that was closed."""
        if connection in self._open:
            self._worker.connection_closed()
        self._open.discard(connection)


class Worker:
    """A worker's view of its parent; created once, before anything is loaded.

    Args:
        place: the worker's place.
    """

    def __init__(self, place: Place) -> None:
        self.index = place.index
        self.of = place.of
        self.shared = place.shared
        # The descriptor stays open until the process ends: its end notifies the parent.
        self.channel = socket.socket(fileno=os.dup(place.channel))
        self.channel.setblocking(False)
        self._connections = ClosedConnections(place.shared.connections, place.of)
        self._closed = 0

    def tell(self, news: bytes) -> None:
        """Send the parent a message; if the parent has ended, this process will end soon."""
        self.channel.send(news)

    def connection_closed(self) -> None:
        """Count a closed connection: the parent prefers the worker with the fewest open ones."""
        self._closed += 1
        self._connections.put(self.index, self._closed)

    def has_descriptors(self, has: bool) -> None:
        """Tell the parent whether connections may follow."""
        self.tell(ROOM if has else FULL)

    def early_order(self) -> bytes | None:
        """The order to drain, if it was given, even if it was not received yet."""
        return DRAIN if self._connections.parent_stops else None


def obey_parent_alone(parent: int) -> None:
    """End when the parent ends, for any reason; leave SIGTERM and SIGINT to the parent.

    Some supervisors send both to a whole group of processes; the parent orders its workers to stop,
    after the last connection.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # drops a pending signal
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # see the parent
    if sys.platform == "linux":  # on other systems the loop notices that the channel closed
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before that
        os._exit(1)
