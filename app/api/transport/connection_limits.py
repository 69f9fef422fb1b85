"""What a connection may take of time and memory, where uvicorn sets no limit.

How long a head may take and how large it may be, how much may stand around a body, how long a body
may go on that was refused, how long an answer may lie unread.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

from app.api.errors import REQUEST_ID, error_answer
from app.api.request_ids import HEADER, RequestIds
from app.api.service import Service
from app.api.transport.uvicorn_adapter import UvicornConnection
from app.errors import CallerError, HeadLate, HeadTooLarge, MalformedRequest

# Of a head, and of what comes without a byte of body: chunk extensions, trailers.
MAX_HEAD_BYTES = 64 << 10
MAX_HEADERS = 128
MAX_PIPELINED = 256  # requests that wait for others of their connection: each takes some 2 KB
# What is read of a request; a request that waits to be answered may be followed by another one.
BETWEEN, HEAD, SLOW_HEAD, BODY = range(4)
NO_HTTP = "this is no HTTP/1.1 request; the connection is closed"
UNREAD = "answer_unread"
UNREAD_S = 10.0  # an answer that lies unread is looked at so often
UNREAD_BYTES_PER_S = 1024  # slower than this nobody reads


class LimitedProtocol(UvicornConnection):
    """A connection that does not wait for ever; see `uvicorn`'s class, and `asyncio.Protocol`.

    Args:
        service: has the limits, and counts the connections that were cut.
        ids: of the process.
        uvicorn: what uvicorn gives to each of its protocols.
    """

    def __init__(self, service: Service, ids: RequestIds, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self.service = service
        self.ids = ids
        self._reads = BETWEEN
        self._bytes_without_body = 0  # since the last byte of body, or the end of a request
        self._refusal: CallerError | None = None
        self._is_cut = False
        # A timer for each request would cost 2 us: one runs on and looks whether what the
        # connection waits for is overdue; None: the server is at work.
        self._due: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._unread_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self._wait(self.service.limits.head_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        for timer in (self._timer, self._unread_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._is_cut:
            return
        self._bytes_without_body += len(data)
        super().data_received(data)
        if self._reads == BETWEEN:  # as mostly
            return
        if self._reads == BODY:
            self.body_goes_on()
        elif self._reads == HEAD and self._due is not None:
            self._reads = SLOW_HEAD
            self._wait(self.service.limits.head_timeout_s)
        if self._bytes_without_body > MAX_HEAD_BYTES and not self._is_cut:
            self._cut(_too_large())

    def body_goes_on(self) -> None:
        """What had come was read, and a body is still to come."""

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._reads = HEAD

    def on_headers_complete(self) -> None:
        """A request is there to be answered.

        Raises:
            HeadTooLarge: to the parser, which stops there.
        """
        if (
            self._bytes_without_body > MAX_HEAD_BYTES
            or len(self.headers) > MAX_HEADERS
            or self.pipelined >= MAX_PIPELINED
        ):
            self._check_head()
        self._reads = BODY
        self._due = None
        self.choose_way()

    def choose_way(self) -> None:
        """Have the request answered."""
        self.answer_by_asgi()

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        self._bytes_without_body = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The last byte of a request."""
        self._reads = BETWEEN
        self._bytes_without_body = 0
        if self._due is not None:  # it was answered already
            self._wait(self.keep_alive_s)
        self.body_ends()

    def body_ends(self) -> None:
        """The body is complete."""
        super().on_message_complete()

    def answered(self) -> None:
        """Wait for the next request, or for the rest of a body that is not wanted any more."""
        if self._reads == BETWEEN:
            self._wait(self.keep_alive_s)
        elif self._reads == BODY:
            self._wait(self.service.limits.timeout_s)
        else:
            self._wait(self.service.limits.head_timeout_s)

    def refuse_the_rest(self, error: CallerError) -> bool:
        """Refuse the request that is being read, if it is none of uvicorn's.

        Returns:
            Whether that was so.
        """
        return False

    def pause_writing(self) -> None:
        """The client does not read as fast as is written."""
        super().pause_writing()
        self._look_at_unread(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """It has read nearly all."""
        super().resume_writing()
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def unreadable(self) -> None:
        """What came is not HTTP, or its head is too large."""
        self._cut(self._refusal or MalformedRequest(NO_HTTP))

    def _wait(self, most_s: float) -> None:
        """From now on the client has so much time."""
        due = self._due = self.loop.time() + most_s
        if self._timer_at > due:
            self._set_timer(due)

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.transport.is_closing():
            self._timer_at = at
            self._timer = self.loop.call_at(at, self._look)

    def _look(self) -> None:
        self._timer = None
        now = self.loop.time()
        if self._due is None:
            self._set_timer(now + self.keep_alive_s)
        elif self._due > now:
            self._set_timer(self._due)
        elif self._reads in (HEAD, SLOW_HEAD):
            limit_s = self.service.limits.head_timeout_s
            self._cut(HeadLate(f"the head of a request must come within {limit_s:g} s"))
        else:
            self.transport.close()

    def _check_head(self) -> None:
        """Refuse a head that is too large, and what is one too many.

        Bytes that came with it may be its body's.

        Raises:
            HeadTooLarge: to the parser, which stops there.
        """
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        many = self.pipelined >= MAX_PIPELINED
        if many or len(self.headers) > MAX_HEADERS or size > MAX_HEAD_BYTES:
            self._refusal = _too_large()
            raise self._refusal

    def _cut(self, error: CallerError) -> None:
        """Read no more: nobody could say where the next request begins."""
        self._is_cut = True
        self.service.metrics.connections_cut.labels(error.code).inc()
        self.stop_reading()
        if self.is_answered:
            self._tell(error)
            self.transport.close()
        elif self.refuse_the_rest(error):
            pass
        elif self.reads_body:
            self.transport.close()
        else:
            self.close_after_answers()

    def _tell(self, error: CallerError) -> None:
        """Answer what never became a request."""
        scope = {REQUEST_ID: self.ids.of(()).decode("ascii")}
        status, headers, content = error_answer(scope, error)
        headers.append((HEADER, scope[REQUEST_ID].encode()))
        self.write_answer(status, headers, content)

    def _look_at_unread(self, before: int) -> None:
        """Close where an answer lies unread: it would take memory for as long as the client likes.

        Args:
            before: bytes that lay there when it was looked at last.
        """

        def look() -> None:
            left = self.transport.get_write_buffer_size()
            if left > before - UNREAD_S * UNREAD_BYTES_PER_S:
                self.service.metrics.connections_cut.labels(UNREAD).inc()
                self.transport.abort()
            else:
                self._look_at_unread(left)

        self._unread_timer = self.loop.call_later(UNREAD_S, look)


def _too_large() -> HeadTooLarge:
    return HeadTooLarge(
        f"at most {MAX_HEADERS} headers and {MAX_HEAD_BYTES} bytes are taken before a body, as "
        f"many bytes without any of it, and {MAX_PIPELINED} requests before the first is answered"
    )
