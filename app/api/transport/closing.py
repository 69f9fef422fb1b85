"""How a connection ends: the client can read the last answer, and no answer stays unread.

Closing while the client still sends resets the connection, and many clients then discard an answer
that they have not read. So the server first closes only its own direction, and continues to read
(RFC 9112, section 9.6).
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

from app.api.answers import UNREAD
from app.api.service import Service
from app.api.transport.uvicorn_adapter import UvicornConnection

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


class ClosingConnection(UvicornConnection):
    """A connection that closes after its last answer; see uvicorn's class and `asyncio.Protocol`.

    Args:
        service: has the counter of cut connections.
        uvicorn: arguments of uvicorn's own protocol.
    """

    def __init__(self, service: Service, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self.service = service
        self._is_ended = False  # the last answer was written
        self._end_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self._watched: object = None  # whose answer the timer is for

    @property
    def can_answer(self) -> bool:
        """Whether anything more can be written."""
        return not (self._is_ended or self.transport.is_closing())

    def close_behind_answer(self) -> None:
        """Close the server's direction; close fully when the client does, or after LAST_READ_S."""
        if self.can_answer:
            self._is_ended = True
            self.end_writing()
            self._wait_for_the_end()

    def shutdown(self) -> None:
        """Close if nothing is left to answer or read, because the server stops."""
        if not self._is_ended:
            super().shutdown()

    def pause_writing(self) -> None:
        """The client reads more slowly than the server writes."""
        super().pause_writing()
        self._watch_unread()

    def resume_writing(self) -> None:
        """The client has read nearly everything that was written."""
        super().resume_writing()
        if not (self.unwritten or self.flow.write_paused or self._is_ended):
            self._watch_no_more()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        if self._end_timer is not None:
            self._end_timer.cancel()
        self._watch_no_more()
        super().connection_lost(exc)

    def _wait_for_the_end(self) -> None:
        def end() -> None:
            if self.transport.get_write_buffer_size():  # not even sent
                self._watch_unread()
                self._wait_for_the_end()
            else:
                self.transport.close()

        self._end_timer = self.loop.call_later(LAST_READ_S, end)

    def _watch_unread(self) -> None:
        """Close the connection if its answer is read too slowly, because it occupies memory."""
        if self._unread_timer is not None:
            if self._watched is self.cycle:
                return
            self._watch_no_more()
        self._watched = self.cycle
        before, checks = self._acknowledged(), 0
        share = (self.unwritten + self.transport.get_write_buffer_size()) * UNREAD_S / WHOLE_S

        def look() -> None:
            nonlocal before, checks
            self._unread_timer = None
            acknowledged = self._acknowledged()
            taken = acknowledged - before
            checks += 1
            if taken < UNREAD_BYTES:
                is_slow = checks >= UNREAD_CHECKS or self._is_pressing()
            else:
                is_slow = taken < share * checks and self.service.answers.is_short
                before, checks = acknowledged, 0
            if is_slow:
                self.service.metrics.connections_cut.labels(UNREAD).inc()
                self.transport.abort()
            elif self.flow.write_paused or self.unwritten or self.transport.get_write_buffer_size():
                self._unread_timer = self.loop.call_later(UNREAD_S, look)
            else:
                self._watched = None

        self._unread_timer = self.loop.call_later(UNREAD_S, look)

    def _watch_no_more(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
        self._unread_timer = self._watched = None

    def _is_pressing(self) -> bool:
        """Whether an unread answer cannot stay for long."""
        return self.service.answers.is_short or self.service.lifecycle.stopping

    def _acknowledged(self) -> int:
        """The bytes that the client's system has acknowledged, plus a constant."""
        try:
            info = self.transport.get_extra_info("socket").getsockopt(
                socket.IPPROTO_TCP, TCP_INFO, BYTES_ACKED.size + BYTES_ACKED_AT
            )
            found: int = BYTES_ACKED.unpack_from(info, BYTES_ACKED_AT)[0]
        except (OSError, struct.error):  # another system, or no TCP
            return -self.transport.get_write_buffer_size() - self.unwritten
        return found
