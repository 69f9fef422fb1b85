"""What a connection sends: answers, in pieces if they are long, and its end.

Closing while the client still sends resets the connection, and many clients then discard an answer
that they have not read. So the server first closes only its own direction, and continues to read
(RFC 9112, section 9.6). A client that does not read its answer is disconnected.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Iterable, MutableSet
from http import HTTPStatus
from typing import Any, Protocol

from app.api.answers import UNREAD, WRITE_BYTES
from app.api.service import Service

PHRASES = {each.value: each.phrase for each in HTTPStatus}
STATUS_LINES = {
    status: f"HTTP/1.1 {status} {PHRASES.get(status, '')}\r\n".encode()
    for status in range(100, 600)
}
LAST_READ_S = 2.0  # for the client to read the last answer and close
UNREAD_S = 10.0  # between two checks of an unread answer
UNREAD_BYTES = 10 << 10  # a client that takes less in the time below counts as not reading
# Times UNREAD_S, while memory is not short: a system with a large receive buffer acknowledges in
# steps of a sixteenth of it. With Linux's 32 MiB, a client that reads 60 KB/s has one in 35 s.
UNREAD_CHECKS = 6
# While memory is short, between two checks a client must take what would be the whole answer in
# this time. 128 MiB take 1.1 MB/s.
WHOLE_S = 120.0
# From struct tcp_info in linux/tcp.h. A buffer of the server's own would show bursts of megabytes.
TCP_INFO: int = getattr(socket, "TCP_INFO", 0)
BYTES_ACKED, BYTES_ACKED_AT = struct.Struct("=Q"), 120


class ServerState(Protocol):
    """What all connections of a server share; uvicorn's server owns it.

    Attributes:
        connections: those that are open; the server stops once there are none.
        tasks: calls of the application; those that are left at a stop are cancelled.
        total_requests: number of answers.
        default_headers: headers of each answer, such as Date.
    """

    connections: MutableSet[Any]
    tasks: set[asyncio.Task[None]]
    total_requests: int
    default_headers: list[tuple[bytes, bytes]]


class Writer:
    """The server's direction of a connection.

    Args:
        service: has the counter of cut connections.
        state: has the default headers.
        transport: of the connection.

    Attributes:
        is_ended: whether the last answer was written.
        is_paused: whether the client reads more slowly than the server writes.
        drained: set while it is not paused.
        left: bytes of the current answer that the transport has not got yet.
    """

    def __init__(self, service: Service, state: ServerState, transport: asyncio.Transport) -> None:
        self.is_ended = False
        self.is_paused = False
        self.left = 0
        self._service = service
        self._state = state
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self.drained = asyncio.Event()
        self.drained.set()
        self._rest = memoryview(b"")  # of a content that is written in pieces
        self._on_sent: Callable[[], None] | None = None
        self._end_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self._answers = 0
        self._watched = 0  # the number of the answer that the timer is for

    @property
    def can_answer(self) -> bool:
        """Whether anything more can be written."""
        return not (self.is_ended or self._transport.is_closing())

    def write(self, data: bytes) -> None:
        """Write a part of an answer, if still possible."""
        if self.can_answer:
            self._transport.write(data)

    def write_answer(
        self, status: int, headers: Iterable[tuple[bytes, bytes]], content: bytes
    ) -> None:
        """Write an answer with the default headers; more of its content may follow."""
        self._answers += 1
        parts = [STATUS_LINES[status]]
        for name, value in (*self._state.default_headers, *headers):
            parts += (name, b": ", value, b"\r\n")
        parts += (b"\r\n", content)
        self._transport.write(b"".join(parts))

    def write_in_pieces(self, content: bytes, sent: Callable[[], None]) -> None:
        """Write a long content as the client reads it; then call `sent`, unless it leaves.

        Each piece has a turn of the event loop: a fast client would otherwise block it.
        """
        self._rest, self._on_sent = memoryview(content), sent
        self.left = len(content)
        self._loop.call_soon(self._write_more)

    def pause(self) -> None:
        """The client reads more slowly than the server writes."""
        self.is_paused = True
        self.drained.clear()
        self._watch_unread()

    def resume(self) -> None:
        """The client has read nearly everything that was written."""
        self.is_paused = False
        self.drained.set()
        self._write_more()
        if not (self.left or self.is_paused or self.is_ended):
            self._watch_no_more()

    def end(self) -> None:
        """Close the server's direction; close fully when the client does, or after LAST_READ_S."""
        self.is_ended = True
        with contextlib.suppress(OSError):  # the client disconnected; the next read reports it
            self._transport.write_eof()
        self._wait_for_the_end()

    def lost(self) -> None:
        """The connection is closed."""
        self.is_ended = True
        self._rest, self._on_sent = memoryview(b""), None
        if self._end_timer is not None:
            self._end_timer.cancel()
        self._watch_no_more()
        self.drained.set()

    def _write_more(self) -> None:
        sent = self._on_sent
        if sent is None or self.is_paused or not self.can_answer:
            return
        piece, self._rest = self._rest[:WRITE_BYTES], self._rest[WRITE_BYTES:]
        self.left = len(self._rest)
        self._transport.write(piece)
        if not self._rest:
            self._rest, self._on_sent = memoryview(b""), None  # frees the content
            sent()
        elif not self.is_paused:  # else `resume` goes on
            self._loop.call_soon(self._write_more)

    def _wait_for_the_end(self) -> None:
        def end() -> None:
            if self._transport.get_write_buffer_size():  # not even sent
                self._watch_unread()
                self._wait_for_the_end()
            else:
                self._transport.close()

        self._end_timer = self._loop.call_later(LAST_READ_S, end)

    def _watch_unread(self) -> None:
        """Close the connection if its answer is read too slowly, because it occupies memory."""
        if self._unread_timer is not None:
            if self._watched == self._answers:
                return
            self._watch_no_more()
        self._watched = self._answers
        before, checks = self._acknowledged(), 0
        share = (self.left + self._transport.get_write_buffer_size()) * UNREAD_S / WHOLE_S

        def look() -> None:
            nonlocal before, checks
            self._unread_timer = None
            acknowledged = self._acknowledged()
            taken = acknowledged - before
            checks += 1
            if taken < UNREAD_BYTES:
                is_slow = checks >= UNREAD_CHECKS or self._is_pressing()
            else:
                is_slow = taken < share * checks and self._service.answers.is_short
                before, checks = acknowledged, 0
            if is_slow:
                self._service.metrics.connections_cut.labels(UNREAD).inc()
                self._transport.abort()
            elif self.is_paused or self.left or self._transport.get_write_buffer_size():
                self._unread_timer = self._loop.call_later(UNREAD_S, look)

        self._unread_timer = self._loop.call_later(UNREAD_S, look)

    def _watch_no_more(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _is_pressing(self) -> bool:
        """Whether an unread answer cannot stay for long."""
        return self._service.answers.is_short or self._service.lifecycle.stopping

    def _acknowledged(self) -> int:
        """The bytes that the client's system has acknowledged, plus a constant."""
        try:
            info = self._transport.get_extra_info("socket").getsockopt(
                socket.IPPROTO_TCP, TCP_INFO, BYTES_ACKED.size + BYTES_ACKED_AT
            )
            acknowledged: int = BYTES_ACKED.unpack_from(info, BYTES_ACKED_AT)[0]
        except (OSError, struct.error):  # another system, or no TCP
            return -self._transport.get_write_buffer_size() - self.left
        return acknowledged
