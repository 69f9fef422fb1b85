"""Stands between clients and gRPC's core, to which it passes on their bytes; see `Client`."""

from __future__ import annotations

import asyncio
import resource
import socket
import sys
from collections import deque
from collections.abc import Callable

import structlog

from app.api.oip.grpc.client import Client, Core
from app.api.oip.grpc.fair_queue import FairQueue

LOG = structlog.get_logger(__name__)
BUFFER_BYTES = 128 << 10  # read at once; a client that waits keeps as much
ACCEPTED = 32  # connections in one turn of the event loop
OPENING = 4  # connections that the core sets up at a time: each takes it about a millisecond
MOST_CONNECTIONS = 1024
CONNECT_S = 5.0
TCP_ESTABLISHED = b"\x01"  # of Linux
PAUSE_S = 0.5  # until the next attempt, if descriptors are exhausted


def most_connections() -> int:
    """As many as fit into half of this process's descriptors: each needs three."""
    return min(MOST_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 6)


class Relay:
    """Connects clients to gRPC's core.

    Args:
        most: maximum number of connections; more are closed at once.
        closed: called when a connection has been closed.

    Attributes:
        core: where the core listens: a Unix socket, or host and port.
        turns: of the clients.
    """

    def __init__(self, most: int, closed: Callable[[], None]) -> None:
        self.core: str | tuple[str, int] = ""
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._most = most
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self.turns = FairQueue(self._loop.call_soon, self._loop.call_later, self._loop.time)
        self._listener: socket.socket | None = None
        self._arrived: deque[socket.socket] = deque()
        self._opening: set[asyncio.Task[None]] = set()
        self._open: set[Client] = set()
        self._next_line = 0.0

    def listen(self, bound: socket.socket) -> None:
        """Accept the connections of a listening socket, which belongs to the relay from now on."""
        bound.setblocking(False)
        self._listener = bound
        self._loop.add_reader(bound, self._accept, bound)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTED):
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue  # the client disconnected while it waited
            except OSError as error:  # no descriptors or memory: the socket stays readable
                self._tell(error)
                self._loop.remove_reader(listener)
                self._loop.call_later(PAUSE_S, self._resume)
                return
            self.take(connection)

    def _resume(self) -> None:
        if self._listener is not None:
            self._loop.add_reader(self._listener, self._accept, self._listener)

    def take(self, connection: socket.socket) -> None:
        """Serve an accepted connection."""
        if len(self._open) + len(self._opening) + len(self._arrived) >= self._most:
            connection.close()
            self._closed()
            return
        self._arrived.append(connection)
        self._serve_some()

    def _serve_some(self) -> None:
        for _ in range(ACCEPTED):
            if not self._arrived or len(self._opening) >= OPENING:
                return
            connection = self._arrived.popleft()
            if _has_ended(connection):
                connection.close()
                self._closed()
                continue
            task = self._loop.create_task(self._connect(connection))
            self._opening.add(task)
            task.add_done_callback(self._has_opened)
        if not self._opening:  # the next to end would go on
            self._loop.call_soon(self._serve_some)

    def _has_opened(self, task: asyncio.Task[None]) -> None:
        self._opening.discard(task)
        self._serve_some()

    async def _connect(self, connection: socket.socket) -> None:
        client = Client(self.turns, self._buffer, self._open.add, self._ended)
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(CONNECT_S):
                await self._connect_core(client)
                await client.core_spoke.wait()
                await self._loop.connect_accepted_socket(lambda: client, connection)
        except (OSError, asyncio.CancelledError) as error:
            connection.close()
            client.close()
            if client not in self._open:
                self._closed()
            if not isinstance(error, OSError):
                raise
            self._tell(error)

    async def _connect_core(self, client: Client) -> None:
        family = socket.AF_UNIX if isinstance(self.core, str) else socket.AF_INET
        inner = socket.socket(family, socket.SOCK_STREAM)
        try:
            inner.setblocking(False)
            if family == socket.AF_UNIX:
                inner.bind("")  # any name: the core tells clients apart by it
            await self._loop.sock_connect(inner, self.core)
            if family == socket.AF_UNIX:
                await self._loop.create_unix_connection(lambda: Core(client, inner), sock=inner)
            else:
                await self._loop.create_connection(lambda: Core(client, inner), sock=inner)
        except BaseException:
            inner.close()
            raise

    def _tell(self, error: OSError) -> None:
        """Log at most one line per PAUSE_S: clients can open any number of connections."""
        now = self._loop.time()
        if now >= self._next_line:
            self._next_line = now + PAUSE_S
            LOG.error("cannot_accept", reason=error.strerror or str(error), port="gRPC")

    def _ended(self, client: Client) -> None:
        self._open.discard(client)
        self._closed()

    def stop_listening(self) -> None:
        """Accept no more connections."""
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def close(self) -> None:
        """Close all connections."""
        self.stop_listening()
        self.turns.close()
        while self._arrived:
            self._arrived.popleft().close()
            self._closed()
        for task in list(self._opening):
            task.cancel()
        for client in list(self._open):
            client.close()


def _has_ended(connection: socket.socket) -> bool:
    """Whether the client has disconnected already."""
    if sys.platform != "linux":
        return False
    state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    return state != TCP_ESTABLISHED
