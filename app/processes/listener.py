"""Sources of connections: a listening socket, or a parent process that accepts them.

uvloop's own servers accept one connection per turn of the event loop. On a busy server a turn
takes tens of milliseconds, so a burst of new connections, including probes, would wait for seconds
before their first byte is read. A source accepts all waiting connections at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import socket
from collections.abc import Callable, Mapping
from typing import Protocol

import structlog

from app.api.ports import PAUSE_S, Shortage, close_listener, is_free_for_connection

LOG = structlog.get_logger(__name__)
BURST = 256  # maximum accepted in one turn; at about 20 us each, other work does not wait long
EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
DESCRIPTORS = 8  # maximum in one message; the parent sends one
# Of an answer, that the kernel keeps for a connection beyond what it has sent. Without a limit it
# keeps 4 MB of what nobody reads. A bounded SO_SNDBUF would slow down distant clients.
UNSENT_BYTES = 256 << 10


def url_of(bound: socket.socket) -> str:
    """The URL of a bound socket for a browser on this machine."""
    host, port = bound.getsockname()[:2]
    any_host = ipaddress.ip_address(host.partition("%")[0]).is_unspecified
    if bound.family == socket.AF_INET6:
        return f"http://[{'::1' if any_host else host}]:{port}/"
    return f"http://{'127.0.0.1' if any_host else host}:{port}/"


class Source:
    """Connects accepted connections to protocols; replaces an `asyncio.Server`.

    Args:
        make_protocol: creates the protocol of a new connection.
    """

    def __init__(self, make_protocol: Callable[[], asyncio.Protocol]) -> None:
        self._make_protocol = make_protocol
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[object]] = set()

    def close(self) -> None:
        """Accept no more connections."""
        raise NotImplementedError

    async def wait_closed(self) -> None:
        """Return when every accepted connection has its protocol."""
        await asyncio.gather(*self._opening, return_exceptions=True)

    def _take(self, connection: socket.socket) -> None:
        task = self._loop.create_task(self._open(connection))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket) -> None:
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with contextlib.suppress(OSError):  # not every kernel knows it
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
            await self._loop.connect_accepted_socket(self._make_protocol, connection)
        except Exception:  # other connections continue
            LOG.exception("connection_not_opened")
            connection.close()
            self._lost()

    def _lost(self) -> None:
        """Handle a connection that never got a protocol."""


class Listener(Source):
    """Listens until it is closed.

    Args:
        bound: a bound TCP socket; owned by the listener from now on.
        make_protocol: creates the protocol of a new connection.
        backlog: maximum connections waiting in the kernel.
    """

    def __init__(
        self, bound: socket.socket, make_protocol: Callable[[], asyncio.Protocol], backlog: int
    ) -> None:
        super().__init__(make_protocol)
        self._socket = bound
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        self._shortage = Shortage()
        bound.setblocking(False)
        bound.set_inheritable(False)
        bound.listen(backlog)
        self._loop.add_reader(bound, self._accept)

    def close(self) -> None:
        """Accept the waiting connections, so that they get an answer; `wait_closed` ends this."""
        if not self._closed:
            self._closed = True
            self._closing = self._loop.create_task(close_listener(self._socket, self._accept))

    async def wait_closed(self) -> None:
        if self._closing is not None:
            await self._closing
        await super().wait_closed()

    def _accept(self) -> bool:
        """Accept waiting connections up to a limit per turn; returns whether more may wait."""
        for _ in range(BURST):
            if not is_free_for_connection(self._socket.fileno(), last=self._closed):
                self._pause()
                return False
            try:
                connection, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return False
            except ConnectionAbortedError:
                continue  # the client disconnected while it waited
            except OSError as error:
                if error.errno not in EXHAUSTED:
                    raise
                self._pause(error.strerror)
                return False
            self._take(connection)
        return True

    def _pause(self, reason: str | None = None) -> None:
        """Pause accepting: the socket stays readable, so the loop would spin."""
        self._shortage.tell(reason)
        self._loop.remove_reader(self._socket)
        self._loop.call_later(PAUSE_S, self._resume)

    def _resume(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._socket, self._accept)


class Parent(Protocol):
    """The parent process, as a `SocketHandover` needs it."""

    def connection_closed(self) -> None:
        """Count a connection that is closed or never got a protocol."""

    def has_descriptors(self, has: bool) -> None:
        """Tell the parent whether connections may follow."""

    def early_order(self) -> bytes | None:
        """The order to drain, if it was given, even if it was not received yet."""


class SocketHandover(Source):
    """Receives connections accepted by the parent process, and its orders.

    Without a descriptor for a connection it reads nothing: a connection that is received then is
    lost. Those in the channel wait, and the parent sends no more.

    Args:
        channel: a connected non-blocking Unix socket; messages of one byte, some with
            connections attached.
        make_protocol: creates the protocol of a new connection.
        ordered: called with each byte received without a connection; empty if the parent has
            ended.
        parent: the parent.
        others: take the connections of other messages.
    """

    def __init__(
        self,
        channel: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        ordered: Callable[[bytes], None],
        parent: Parent,
        others: Mapping[bytes, Callable[[socket.socket], None]] | None = None,
    ) -> None:
        super().__init__(make_protocol)
        self._channel = channel
        self._ordered = ordered
        self._parent = parent
        self._closed = False
        self._shortage = Shortage()
        self._losses = Shortage("connection_lost")
        self._others = others or {}
        self._loop.add_reader(channel, self._receive)

    def close(self) -> None:
        """Receive what waits in the channel, and stop; an order to drain is the last of it."""
        if self._closed:
            return
        self._closed = True
        while self._receive():
            pass
        self._loop.remove_reader(self._channel)

    def _receive(self) -> bool:
        """Receive up to a limit per turn; returns whether more may wait."""
        for _ in range(BURST):
            if not is_free_for_connection(self._channel.fileno(), last=self._closed):
                self._pause()
                return False
            try:
                data, descriptors, flags, _ = socket.recv_fds(self._channel, 1, DESCRIPTORS)
            except (BlockingIOError, InterruptedError):
                return False
            except ConnectionError:
                data, descriptors, flags = b"", [], 0
            for descriptor in descriptors:
                self._others.get(data, self._take)(socket.socket(fileno=descriptor))
            if flags & socket.MSG_CTRUNC:  # another thread took the last one: the kernel closed it
                self._losses.tell()
                self._lost()
            elif not descriptors:
                self._ordered(data)
                if not data:
                    return False
        return True

    def _pause(self) -> None:
        self._shortage.tell()
        self._loop.remove_reader(self._channel)
        self._parent.has_descriptors(False)
        self._loop.call_later(PAUSE_S, self._resume)

    def _resume(self) -> None:
        if self._closed:
            return
        if order := self._parent.early_order():
            self._ordered(order)  # closing connections frees descriptors
        if is_free_for_connection(self._channel.fileno()):
            self._parent.has_descriptors(True)
            self._loop.add_reader(self._channel, self._receive)
        else:
            self._loop.call_later(PAUSE_S, self._resume)

    def _lost(self) -> None:
        self._parent.connection_closed()
