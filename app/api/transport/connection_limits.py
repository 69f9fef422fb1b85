"""Time and memory limits of a connection that uvicorn lacks, and the rules of `head.py`.

They cover the time and size of a head, the bytes around a body, and the rest of a rejected body.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection
from typing import Any, cast

from httptools import HttpParserError

from app.api.errors import FORM, REQUEST_ID, error_answer
from app.api.idle import FIRST_S, IdleConnection
from app.api.negotiation import fields_of
from app.api.request_ids import HEADER, RequestIds
from app.api.service import Service
from app.api.transport.head import check_head, check_trailers, line_tail, path_of, unreadable
from app.api.transport.reading import ReadingConnection
from app.errors import (
    CallerError,
    HeadLate,
    HeadTooLarge,
    NotImplementedInHttp,
    Overloaded,
    TorchlaneError,
)

# Limit of a head, and of any data without body bytes: chunk extensions, trailers.
MAX_HEAD_BYTES = 64 << 10
MAX_HEADERS = 128
IDLE = "idle"
# The part of a request being read.
BETWEEN, HEAD, SLOW_HEAD, BODY = range(4)


class LimitedProtocol(ReadingConnection):
    """A connection with time and memory limits; see uvicorn's class and `asyncio.Protocol`.

    Args:
        service: has the limits and the counter of cut connections.
        ids: request ids of the process.
        uvicorn: arguments of uvicorn's own protocol.
    """

    def __init__(self, service: Service, ids: RequestIds, **uvicorn: Any) -> None:
        super().__init__(service, **uvicorn)
        self.ids = ids
        self._reads = BETWEEN
        self._bytes_without_body = 0  # since the last byte of body, or the end of a request
        self._valid_host: bytes | None = None  # the last Host that was checked
        self._line_tail = b""  # of an incomplete request line
        self._is_cut = False  # further data is not read
        # A timer for each request would cost 2 us. One timer keeps running and checks whether the
        # client is overdue; None while the server is working.
        self._due: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        others = cast(Collection[IdleConnection], self.connections)
        self.service.idle.make_room(others, self.loop)
        self._wait(self.service.limits.head_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    @property
    def can_keep(self) -> bool:
        """Whether what the client sends can still matter."""
        return not (self._is_cut or self._is_ended)

    @property
    def can_parse(self) -> bool:
        """Whether to parse more now; a request waits until the one before it is answered."""
        return self.can_keep and (
            self._reads != BETWEEN or (self.is_answered and not self.flow.write_paused)
        )

    def parse(self, piece: bytes | memoryview) -> None:
        """Parse the next bytes, which contain the end of at most one request."""
        self._bytes_without_body += len(piece)
        if self._reads == BETWEEN or self._line_tail:
            try:
                self._line_tail = line_tail(self._line_tail, piece)
            except CallerError as error:
                self.url = b""  # that of an earlier request, if any
                self._cut(error)
                return
        self.feed(piece)
        if self._bytes_without_body > MAX_HEAD_BYTES and not self._is_cut:
            self._cut(_too_large())

    def on_parsed(self) -> None:
        """Limit the time for the rest of a request."""
        if self._reads == BETWEEN:  # the usual case
            return
        if self._reads == BODY:
            self.on_body_pending()
        elif self._reads == HEAD and self._due is not None:
            self._reads = SLOW_HEAD
            self._wait(self.service.limits.head_timeout_s)

    def on_too_much_ahead(self, error: Overloaded) -> None:
        """Answer what was parsed, then close: what was sent ahead is dropped."""
        self._cut(error)

    def on_body_pending(self) -> None:
        """Called after each read that left a body incomplete."""

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._reads = HEAD

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer after a body."""
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Start to answer a request whose head is complete.

        Raises:
            CallerError: to the parser, which then stops.
        """
        if self.asks_for_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise NotImplementedInHttp("CONNECT is for proxies; this server is not a proxy")
            return  # the head will be parsed again without its Upgrade header
        if self._bytes_without_body > MAX_HEAD_BYTES or len(self.headers) > MAX_HEADERS:
            raise _too_large()
        self.version = self.parser.get_http_version()
        headers = self.headers
        fields = self.fields = dict(headers)
        host = fields.get(b"host")
        if (
            self.version != "1.1"
            or host is None
            or host != self._valid_host
            or len(fields) != len(headers)
            or b"transfer-encoding" in fields
        ):
            fields = self.fields = fields_of(headers)
            check_head(self.version, headers, fields)
            self._valid_host = host
        if b"expect" in fields:  # HTTP/1.0 has no interim answers
            expected = fields[b"expect"].lower() == b"100-continue"
            self.expect_100_continue = expected and self.version == "1.1"
        if not self.url.startswith(b"/") or b"#" in self.url:
            self.url = path_of(self.url, host or b"")
        self._reads = BODY
        self._due = None
        length = fields.get(b"content-length")
        self._body_left = int(length) if length else 0
        self.choose_path()
        self.headers = []  # for trailers, which must not become headers (RFC 9110, section 6.5.1)

    @property
    def is_free(self) -> bool:
        """Whether a request could be answered at once, if none has been partly read."""
        return (
            self._reads == BETWEEN
            and not self._is_cut
            and self.can_answer
            and self.is_answered
            and self._ahead is None
            and not self.flow.write_paused
        )

    @property
    def is_closing(self) -> bool:
        """See `IdleConnection`."""
        return self.transport.is_closing()

    @property
    def idle_since(self) -> float | None:
        """Since when it has waited for the first byte of a request; see `IdleConnection`.

        None also if the client has not read the last answer, so that it can.
        """
        if self._due is None or not self.is_free or self.transport.get_write_buffer_size():
            return None
        is_new = self.cycle is None
        if not is_new:
            return self._due - self.keep_alive_s
        since = self._due - self.service.limits.head_timeout_s
        return since if self.loop.time() - since >= FIRST_S else None

    def close_idle(self) -> None:
        """Close at once, because too many connections are open."""
        self.service.metrics.connections_cut.labels(IDLE).inc()
        self.transport.close()

    def on_known_head(self) -> None:
        """A whole request with a known head was read."""
        self._bytes_without_body = 0
        self._due = None

    def choose_path(self) -> None:
        """Answer the request on uvicorn's path."""
        self.answer_by_asgi()

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        self.on_body_bytes(len(body))
        super().on_body(body)

    def on_body_bytes(self, count: int) -> None:
        """Count bytes of a body."""
        self._bytes_without_body = 0
        self._body_left -= count

    def on_message_complete(self) -> None:
        """The last byte of a request.

        Raises:
            CallerError: to the parser, which then stops: the trailers are invalid.
        """
        if self._reads in (HEAD, SLOW_HEAD):  # the head will be parsed again
            return
        if self.headers:
            check_trailers(self.headers)
            if len(self.headers) > MAX_HEADERS:
                raise _too_large()
        self._reads = BETWEEN
        self._bytes_without_body = self._body_left = 0
        if self._due is not None:  # already answered
            self._wait(self.keep_alive_s)
        self.body_ends()

    def body_ends(self) -> None:
        """The body is complete."""
        super().on_message_complete()

    def answered(self) -> None:
        """Wait for the next request, or for the rest of a body that is no longer wanted."""
        if self._reads == BETWEEN:
            self._wait(self.keep_alive_s)
        elif self._reads == BODY:
            self._wait(self.service.limits.timeout_s)
        else:
            self._wait(self.service.limits.head_timeout_s)
        self.go_on()

    def reject_rest(self, error: TorchlaneError) -> bool:
        """Reject the request that is being read, if it is on the fast path.

        Returns:
            Whether it was on the fast path.
        """
        return False

    def unreadable(self, error: HttpParserError) -> None:
        """Cut the connection after data that is not HTTP or was rejected."""
        rejection = error.__context__
        self._cut(rejection if isinstance(rejection, CallerError) else unreadable(str(error)))

    def _wait(self, most_s: float) -> None:
        """Give the client this much time from now on."""
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
        if self._due is None or self._ahead is not None:  # the server's turn
            self._set_timer(now + self.keep_alive_s)
        elif self._due > now:
            self._set_timer(self._due)
        elif self._reads in (HEAD, SLOW_HEAD):
            limit_s = self.service.limits.head_timeout_s
            self._cut(HeadLate(f"the head of a request must arrive within {limit_s:g} s"))
        else:
            self.close_behind_answer()

    def _cut(self, error: TorchlaneError) -> None:
        """Stop reading, because the start of the next request is now unknown."""
        if not self.can_answer:
            return
        self._is_cut = True
        self.service.metrics.connections_cut.labels(error.code).inc()
        self.stop_reading()
        self.drop_ahead()
        if self.is_answered:
            if self._reads != BODY:  # the rest of a body whose request is answered
                self._send_error(error)
            self.close_behind_answer()
        elif self.reject_rest(error):
            pass
        elif not self.reads_body:
            self.close_after_answer()
        elif self.end_application():
            self._send_error(error)
            self.close_behind_answer()
        else:  # part of an answer has been sent
            self.transport.close()

    def _send_error(self, error: TorchlaneError) -> None:
        """Answer bytes that never became a request."""
        path = self.url.partition(b"?")[0].decode("latin-1")  # the part that has been read
        request_id = self.ids.of({})
        form = self.service.dialects.of(path).errors
        scope = {REQUEST_ID: request_id.decode("ascii"), FORM: form}
        status, headers, content = error_answer(scope, error)
        headers.append((HEADER, request_id))
        self.write_answer(status, headers, content)


def _too_large() -> HeadTooLarge:
    return HeadTooLarge(
        f"at most {MAX_HEADERS} headers and {MAX_HEAD_BYTES} bytes are allowed before a body, and "
        "as many bytes without body data"
    )
