"""Sources of connections: a listening socket, or a parent process that accepts them.

uvloop's own servers accept one connection per turn of the event loop. On a busy server a turn
takes tens of milliseconds, so a burst of new connections, including probes, would wait for seconds
before their first byte is read. A source accepts all waiting connections at once.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
from collections.abc import Callable, Mapping

import structlog

LOG = structlog.get_logger(__name__)
BURST = 256  # maximum accepted in one turn; at about 20 us each, other work does not wait long
PAUSE_S = 0.5  # until the next attempt, if descriptors or memory are exhausted
EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
DESCRIPTORS = 8  # maximum in one message; the parent sends one


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
        bound.setblocking(False)
        bound.set_inheritable(False)
        bound.listen(backlog)
        self._loop.add_reader(bound, self._accept)

    def close(self) -> None:
        """Accept the waiting connections, so that they get an answer, and stop listening."""
        if self._closed:
            return
        while self._accept():
            pass
        self._closed = True
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _accept(self) -> bool:
        """Accept waiting connections up to a limit per turn; returns whether more may wait."""
        for _ in range(BURST):
            try:
                connection, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return False
            except ConnectionAbortedError:
                continue  # the client disconnected while it waited
            except OSError as error:
                if error.errno not in EXHAUSTED:
                    raise
                self._pause(error)
                return False
            self._take(connection)
        return True

    def _pause(self, error: OSError) -> None:
        """Pause accepting: the socket stays readable, so the loop would spin."""
        LOG.error("cannot_accept", reason=error.strerror, next_try_s=PAUSE_S)
        self._loop.remove_reader(self._socket)
        self._loop.call_later(PAUSE_S, self._resume)

    def _resume(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._socket, self._accept)


class SocketHandover(Source):
    """Receives connections accepted by the parent process, and its orders.

    Args:
        channel: a connected non-blocking Unix socket; messages of one byte, some with
            connections attached.
        make_protocol: creates the protocol of a new connection.
        ordered: called with each byte received without a connection; empty if the parent has
            ended.
        lost: called when a connection never got a protocol.
        others: take the connections of other messages.
    """

    def __init__(
        self,
        channel: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        ordered: Callable[[bytes], None],
        lost: Callable[[], None],
        others: Mapping[bytes, Callable[[socket.socket], None]] | None = None,
    ) -> None:
        super().__init__(make_protocol)
        self._channel = channel
        self._ordered = ordered
        self._on_lost = lost
        self._others = others or {}
        self._losses = 0  # not logged yet
        self._next_line = 0.0
        self._loop.add_reader(channel, self._receive)

    def close(self) -> None:
        """Stop reading from the parent; its order to drain follows the last connection."""
        self._loop.remove_reader(self._channel)

    def _receive(self) -> None:
        for _ in range(BURST):
            try:
                data, descriptors, flags, _ = socket.recv_fds(self._channel, 1, DESCRIPTORS)
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                data, descriptors, flags = b"", [], 0
            for descriptor in descriptors:
                self._others.get(data, self._take)(socket.socket(fileno=descriptor))
            if flags & socket.MSG_CTRUNC:  # no descriptor was free, so the kernel closed it
                self._tell_of_loss()
                self._lost()
            elif not descriptors:
                self._ordered(data)
                if not data:
                    return

    def _tell_of_loss(self) -> None:
        """Log at most one line per PAUSE_S: callers can open any number of connections."""
        self._losses += 1
        now = self._loop.time()
        if now >= self._next_line:
            self._next_line = now + PAUSE_S
            LOG.error("connection_lost", reason="too many open files", connections=self._losses)
            self._losses = 0

    def _lost(self) -> None:
        self._on_lost()
