"""Stands between clients and gRPC's core, to which it passes on their bytes; see `Client`."""

from __future__ import annotations

import asyncio
import errno
import heapq
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from app.api import idle
from app.api.oip.grpc.client import Client, Core
from app.api.oip.grpc.fair_queue import FairQueue
from app.api.oip.grpc.peers import Peers
from app.api.ports import PAUSE_S, Shortage, close_listener

BUFFER_BYTES = 128 << 10  # read at once; a client that waits keeps as much
ACCEPTED = 32  # connections in one turn of the event loop
OPENING = 4  # connections that the core sets up at a time: each takes it about a millisecond
MOST_CONNECTIONS = 1024
CONNECT_S = 5.0
TCP_ESTABLISHED = b"\x01"  # of Linux
LATE = f"a connection to gRPC's core took longer than {CONNECT_S:g} s: is the machine overloaded?"
AGAIN_S = 0.1  # until the next look for idle connections, if there was none
SHARE = 64  # at least 1/64 of the connections are closed at once: each search looks at all


def most_connections() -> int:
    """As many as fit into half of this process's descriptors: each needs three."""
    return min(MOST_CONNECTIONS, max(1, idle.most_connections() // 3))


@dataclass(frozen=True, slots=True)
class Events:
    """What is told of connections; each is called once for a connection.

    Attributes:
        closed: it has been closed, for whatever reason.
        was_idle: it was idle, and is closed to make room for others.
        refused: it is closed at once, because too many are open and none is idle.
    """

    closed: Callable[[], None]
    was_idle: Callable[[], None]
    refused: Callable[[], None]


class Relay:
    """Connects clients to gRPC's core.

    Args:
        most: maximum number of connections; for more, those that are idle for longest are closed.
        peers: what their calls hold.
        is_free: whether a connection may take a descriptor, by any open one.
        events: what is told of connections.

    Attributes:
        core: where the core listens: a Unix socket, or host and port.
        turns: of the clients.
    """

    def __init__(
        self, most: int, peers: Peers, is_free: Callable[[int], bool], events: Events
    ) -> None:
        self.core: str | tuple[str, int] = ""
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._most = most
        self._peers = peers
        self._is_free = is_free
        self._events = events
        self._next_look_s = 0.0
        self._loop = asyncio.get_running_loop()
        self.turns = FairQueue(self._loop.call_soon, self._loop.call_later, self._loop.time)
        self._listener: socket.socket | None = None
        self._arrived: deque[socket.socket] = deque()
        self._opening: set[asyncio.Task[None]] = set()
        self._open: set[Client] = set()
        self._shortage = Shortage(port="gRPC")

    def listen(self, bound: socket.socket) -> None:
        """Accept the connections of a listening socket, which belongs to the relay from now on."""
        bound.setblocking(False)
        self._listener = bound
        self._loop.add_reader(bound, self._accept, bound)

    def _accept(self, listener: socket.socket) -> bool:
        """Accept waiting connections up to a limit per turn; returns whether more may wait."""
        for _ in range(ACCEPTED):
            if not self._is_free(listener.fileno()):
                self._make_room()
                self._pause(listener, os.strerror(errno.EMFILE))
                return False
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, InterruptedError):
                return False
            except ConnectionAbortedError:
                continue  # the client disconnected while it waited
            except OSError as error:  # no descriptors or memory: the socket stays readable
                self._pause(listener, str(error))
                return False
            self.take(connection)
        return True

    def _pause(self, listener: socket.socket, why: str) -> None:
        self._shortage.tell(why)
        self._loop.remove_reader(listener)
        self._loop.call_later(PAUSE_S, self._resume)

    def _resume(self) -> None:
        if self._listener is not None:
            self._loop.add_reader(self._listener, self._accept, self._listener)

    def take(self, connection: socket.socket) -> None:
        """Serve an accepted connection."""
        if len(self._open) + len(self._opening) + len(self._arrived) >= self._most:
            self._make_room()
        if len(self._open) + len(self._opening) + len(self._arrived) >= self._most:
            connection.close()
            self._events.refused()
            self._events.closed()
            self._shortage.tell(f"{self._most} connections are open, and none is idle")
            return
        self._arrived.append(connection)
        self._serve_some()

    def _make_room(self) -> None:
        """Close the connections that have been idle for longest, if any is."""
        now = time.monotonic()
        if now < self._next_look_s:
            return
        found = [
            (since, each) for each in self._open if (since := each.idle_since(now)) is not None
        ]
        if not found:
            self._next_look_s = now + AGAIN_S
        few = max(1, self._most // SHARE)
        for _, client in heapq.nsmallest(few, found, key=lambda pair: pair[0]):
            self._open.discard(client)
            client.abort()
            self._events.was_idle()

    def _serve_some(self) -> None:
        for _ in range(ACCEPTED):
            if not self._arrived or len(self._opening) >= OPENING:
                return
            connection = self._arrived.popleft()
            if _has_ended(connection):
                connection.close()
                self._events.closed()
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
            client.abort()
            self._ended(client)
            if not isinstance(error, OSError):
                raise
            self._shortage.tell(
                LATE if isinstance(error, TimeoutError) else error.strerror or str(error)
            )

    async def _connect_core(self, client: Client) -> None:
        family = socket.AF_UNIX if isinstance(self.core, str) else socket.AF_INET
        inner = socket.socket(family, socket.SOCK_STREAM)
        try:
            if not self._is_free(inner.fileno()):
                self._make_room()
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            inner.setblocking(False)
            if family == socket.AF_UNIX:
                inner.bind("")  # any name: the core tells clients apart by it
            await self._loop.sock_connect(inner, self.core)
            client.peer = self._peers.add(_name_of(inner), client.abort)
            if family == socket.AF_UNIX:
                await self._loop.create_unix_connection(lambda: Core(client, inner), sock=inner)
            else:
                await self._loop.create_connection(lambda: Core(client, inner), sock=inner)
        except BaseException:
            inner.close()
            raise

    def _ended(self, client: Client) -> None:
        self._open.discard(client)
        if client.has_ended:  # the connection was made, and lost, and then its task was cancelled
            return
        client.has_ended = True
        if client.peer is not None:
            self._peers.remove(client.peer)
        self._events.closed()

    async def stop_listening(self) -> None:
        """Accept no more connections; returns when the waiting ones have reached the core."""
        if (listener := self._listener) is not None:
            try:
                await close_listener(listener, lambda: self._accept(listener))
            finally:
                self._listener = None
        while self._arrived or self._opening:
            if self._opening:
                await asyncio.wait(self._opening)
            await asyncio.sleep(0)  # `_serve_some` begins with the next ones

    def close(self) -> None:
        self.turns.close()
        while self._arrived:
            self._arrived.popleft().close()
            self._events.closed()
        for task in list(self._opening):
            task.cancel()
        for client in list(self._open):
            client.close()


def _name_of(inner: socket.socket) -> str:
    """The core's name of a connection."""
    name = inner.getsockname()
    if isinstance(name, bytes):  # an abstract Unix socket
        return f"unix-abstract:{name[1:].decode()}"
    host, port = name[:2]
    return f"ipv4:{host}:{port}"


def _has_ended(connection: socket.socket) -> bool:
    """Whether the client has disconnected already."""
    if sys.platform != "linux":
        return False
    state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    return state != TCP_ESTABLISHED
