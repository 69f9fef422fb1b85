"""A listening socket that takes every waiting connection at once.

uvloop's own servers accept one connection in each turn of the event loop. On a busy server a turn
takes tens of milliseconds, so a burst of new connections, probes among them, would wait for
seconds before anybody reads their first byte.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable

import structlog

LOG = structlog.get_logger(__name__)
BURST = 256  # accepted in one turn; at some 20 us each, the others do not wait long
PAUSE_S = 0.5  # without descriptors or memory for a connection: until the next try
EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Listener:
    """Listens until it is closed; stands in the place of an `asyncio.Server`.

    Args:
        bound: a bound TCP socket; the listener owns it from now on.
        make_protocol: gives the protocol of a new connection.
        backlog: connections that the kernel keeps waiting.
    """

    def __init__(
        self, bound: socket.socket, make_protocol: Callable[[], asyncio.Protocol], backlog: int
    ) -> None:
        self._socket = bound
        self._make_protocol = make_protocol
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[object]] = set()
        self._closed = False
        bound.setblocking(False)
        bound.set_inheritable(False)
        bound.listen(backlog)
        self._loop.add_reader(bound, self._accept)

    def close(self) -> None:
        """Take what waits already, so that it gets an answer, and listen no more."""
        if self._closed:
            return
        self._accept()
        self._closed = True
        self._loop.remove_reader(self._socket)
        self._socket.close()

    async def wait_closed(self) -> None:
        """Return when every connection that was accepted has its protocol."""
        await asyncio.gather(*self._opening, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(BURST):
            try:
                connection, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue  # it went away while it waited
            except OSError as error:
                if error.errno not in EXHAUSTED:
                    raise
                self._pause(error)
                return
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = self._loop.create_task(self._open(connection))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, connection)
        except Exception:  # of one connection: the others go on
            LOG.exception("connection_not_opened")
            connection.close()

    def _pause(self, error: OSError) -> None:
        """The socket stays readable: without a pause the loop would turn for nothing else."""
        LOG.error("cannot_accept", reason=error.strerror, next_try_s=PAUSE_S)
        self._loop.remove_reader(self._socket)
        self._loop.call_later(PAUSE_S, self._resume)

    def _resume(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._socket, self._accept)
