"""One connection to the server: commands are sent at once, and answers arrive in the same order.

redis-py's client needs a task and a connection for each waiting command, and several times the CPU
time. A link shares one connection, creates no task, and limits what it receives. hiredis reads and
writes the protocol.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

import hiredis

MOST_REPLY_BYTES = 64 << 20  # of one answer; a longer one closes the connection
NOTHING = object()  # no complete answer has arrived
# hiredis allocates a list with the length in the head of an array before any element has arrived.
HEAD = re.compile(rb"\n[*%~>|]([0-9]{1,10})\r")
HEAD_BYTES = 13  # of the longest head
MOST_ELEMENTS = 1 << 20  # of one answer
CODE = re.compile(r"[A-Z]{2,20}\b")
# The answers to commands sent together, as hiredis returns them; None: the connection was lost.
Replies: TypeAlias = Sequence[object] | None


class LinkError(Exception):
    """The server cannot be used; the message contains nothing that was sent to the server."""


class Refused(LinkError):
    """An error as an answer; only its code is kept, since servers may quote what they received."""

    def __init__(self, text: str) -> None:
        code = CODE.match(text)
        super().__init__(f"the server answers {code.group() if code else 'an error'}")


def packed(*command: str | bytes) -> bytes:
    """A command in the server's protocol."""
    return cast(bytes, hiredis.pack_command(cast("tuple[str]", command)))  # the stub has one word


class Link(asyncio.Protocol):
    """See the module. Created by asyncio's `create_connection`.

    Args:
        lost: called once with the reason if the connection ends, unless `close` ended it.
    """

    def __init__(self, lost: Callable[[str], None]) -> None:
        self._lost: Callable[[str], None] | None = lost
        self._reader = hiredis.Reader(
            protocolError=LinkError, replyError=Refused, notEnoughData=NOTHING
        )
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[tuple[int, Callable[[Replies], None]]] = deque()
        self._replies: list[object] = []
        self._unread_bytes = 0
        self._elements = 0  # sum of the lengths in heads of unread arrays, or in similar bytes
        self._end_of_data = b"\n"  # end of the data read so far: a head may arrive in parts

    @property
    def unanswered(self) -> int:
        """Number of groups of commands sent together that wait for answers."""
        return len(self._waiting)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send(self, commands: bytes, count: int, done: Callable[[Replies], None]) -> None:
        """Send commands together.

        Args:
            commands: concatenated outputs of `packed`.
            count: number of commands.
            done: called once with their answers, or with None if the connection is lost.
        """
        if self._transport is None:
            done(None)
            return
        self._waiting.append((count, done))
        self._transport.write(commands)

    async def ask(self, *command: str | bytes) -> object:
        """Send one command and wait for its answer.

        Raises:
            LinkError: if the answer is an error, or the connection was lost.
        """
        answered: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        def done(replies: Replies) -> None:
            if not answered.done():
                answered.set_result(
                    LinkError("the connection was lost") if replies is None else replies[0]
                )

        self.send(packed(*command), 1, done)
        reply = await answered
        if isinstance(reply, LinkError):
            raise reply
        return reply

    def data_received(self, data: bytes) -> None:
        self._unread_bytes += len(data)
        new = self._end_of_data + data
        self._end_of_data = new[-HEAD_BYTES:]
        self._elements += sum(map(int, HEAD.findall(new)))
        if self._unread_bytes > MOST_REPLY_BYTES or self._elements > MOST_ELEMENTS:
            self._end(
                f"an answer is longer than {MOST_REPLY_BYTES} bytes or {MOST_ELEMENTS} elements"
            )
            return
        self._reader.feed(data)
        while self._transport is not None:
            try:
                reply = self._reader.gets()
            except (LinkError, MemoryError, TypeError):  # TypeError: a map with a list as key
                self._end("it does not speak the protocol of Redis")
                return
            if reply is NOTHING:
                return
            self._unread_bytes = self._elements = 0
            self._take(reply)

    def connection_lost(self, error: Exception | None) -> None:
        self._end("the connection was closed" if error is None else type(error).__name__)

    def close(self) -> None:
        """End the connection; waiting commands get no answer."""
        self._lost = None
        self._end("")

    def _take(self, reply: object) -> None:
        if not self._waiting:
            self._end("an answer without a command")
            return
        count, done = self._waiting[0]
        self._replies.append(reply)
        if len(self._replies) == count:
            self._waiting.popleft()
            replies, self._replies = self._replies, []
            done(replies)

    def _end(self, why: str) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        lost, self._lost = self._lost, None
        if lost is not None:
            lost(why)
        waiting, self._waiting = self._waiting, deque()
        for _, done in waiting:
            done(None)
