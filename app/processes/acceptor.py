"""Accepts connections for several workers, and hands each to the least connected worker.

A long-lived connection stays with its first worker, so the choice matters. With a socket that all
workers listen on, one worker can get all connections (docs/adr/0010-several-processes.md has data).
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Mapping

from app.api.ports import BACKLOG, PAUSE_S, Shortage, close_listener
from app.processes.listener import BURST, EXHAUSTED
from app.processes.worker import CONNECTION, ClosedConnections

# The last one: this user has more connections on their way to processes than it may open files.
NOT_NOW = EXHAUSTED | {errno.ETOOMANYREFS}


class Recipient:
    """A worker that accepts connections from the parent.

    Attributes:
        channel: the socket to the worker.
        listens: whether it accepts connections.
        loaded: whether loading its models has ended, successfully or not.
        ready: whether the models work that it needs.
        complete: whether all models work that should.
        passed: number of connections handed to it.
        full: whether its channel is full for now.
        has_descriptors: whether it has descriptors for more connections.
    """

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.listens = False
        self.loaded = False
        self.ready = False
        self.complete = False
        self.passed = 0
        self.full = False
        self.has_descriptors = True

    @property
    def can_accept(self) -> bool:
        """Whether it can be handed a connection now."""
        return self.listens and self.has_descriptors and not self.full


class Acceptor:
    """Listens while a worker can accept a connection; created on the event loop.

    Args:
        bound: a bound TCP socket; owned by the acceptor from now on.
        workers: the intended number of workers.
        recipients: the living workers, by index.
        gone: how many connections each worker has closed.
        message: what carries a connection to a worker.
        group: the acceptors of all ports, which resume and close together; this one joins it.
    """

    def __init__(
        self,
        bound: socket.socket,
        workers: int,
        recipients: Mapping[int, Recipient],
        gone: ClosedConnections,
        message: bytes = CONNECTION,
        group: list[Acceptor] | None = None,
    ) -> None:
        self._listener = bound
        self._workers = workers
        self._recipients = recipients
        self._gone = gone
        self._message = message
        self._group = [] if group is None else group
        self._group.append(self)
        self._loop = asyncio.get_running_loop()
        self._next = 0  # the first choice among equals
        self._held: socket.socket | None = None  # accepted, but not yet handed to a worker
        self._accepting = False
        self._closed = False
        self._shortage = Shortage()
        bound.setblocking(False)

    async def close(self) -> None:
        """Pass on waiting connections while workers accept them, and stop listening."""
        await asyncio.gather(*(each._close() for each in self._group))

    def resume(self) -> None:
        """Listen, now that a worker can accept a connection."""
        for each in self._group:
            each._resume()

    async def _close(self) -> None:
        await close_listener(self._listener, lambda: self._accepting and self._accept())
        self._closed = True
        self._accepting = False
        if self._held is not None:
            self._held.close()

    def _resume(self) -> None:
        if not self._accepting and not self._closed:
            self._accepting = True
            self._listener.listen(BACKLOG)  # no effect if it listens already
            self._loop.add_reader(self._listener, self._accept)
            self._accept()

    def _pause(self) -> None:
        self._accepting = False
        self._loop.remove_reader(self._listener)

    def _accept(self) -> bool:
        """Pass on waiting connections.

        Returns:
            Whether more may wait.
        """
        for _ in range(BURST):
            # Connections wait in the kernel until a worker is free.
            if not any(each.can_accept for each in self._recipients.values()):
                self._pause()
                return False
            try:
                if self._held is None:
                    self._held, _ = self._listener.accept()
                self._pass_on(self._held)
            except (BlockingIOError, InterruptedError):
                return False
            except ConnectionAbortedError:
                continue  # the client disconnected while it waited
            except OSError as error:
                if error.errno not in NOT_NOW:
                    raise
                is_own = error.errno != errno.ETOOMANYREFS  # else the system's words are obscure
                self._shortage.tell(error.strerror if is_own else None)
                self._pause()
                self._loop.call_later(PAUSE_S, self.resume)
                return False
        return True

    def _pass_on(self, connection: socket.socket) -> None:
        """Hand the accepted connection to a worker, or hold it if no worker can accept it."""
        while (chosen := self._choose()) is not None:
            index, recipient = chosen
            try:
                socket.send_fds(recipient.channel, [self._message], [connection.fileno()])
            except BlockingIOError:
                recipient.full = True
                self._loop.add_writer(recipient.channel, self._has_room, recipient)
            except ConnectionError:
                recipient.listens = False  # the worker has died; the supervisor will notice
            else:
                recipient.passed += 1
                self._next = index + 1
                connection.close()
                self._held = None
                return

    def _has_room(self, recipient: Recipient) -> None:
        self._loop.remove_writer(recipient.channel)
        recipient.full = False
        self.resume()

    def _choose(self) -> tuple[int, Recipient] | None:
        """The least connected worker that can accept a connection; those with all models first."""
        able = {i: each for i, each in self._recipients.items() if each.can_accept}
        if not able:
            return None
        gone = self._gone.counts()
        index = min(
            able,
            key=lambda i: (
                not able[i].loaded,
                not able[i].ready,
                not able[i].complete,
                able[i].passed - gone[i],
                (i - self._next) % self._workers,
            ),
        )
        return index, able[index]
