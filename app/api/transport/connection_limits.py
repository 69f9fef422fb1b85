"""Limits of a connection, and rules of HTTP, that uvicorn and its parser leave to others.

The limits cover the time and size of a head, the bytes around a body, the rest of a rejected body,
and an answer that the client does not read. The rules are those of RFC 9110 and 9112 for a head and
for trailers; tests/http lists them all.
"""

from __future__ import annotations

import asyncio
import math
import re
from typing import Any, NoReturn

from app.api.errors import REQUEST_ID, error_answer
from app.api.origins import AUTHORITY
from app.api.request_ids import HEADER, RequestIds
from app.api.service import Service
from app.api.transport.uvicorn_adapter import UvicornConnection
from app.errors import (
    CallerError,
    HeadLate,
    HeadTooLarge,
    HttpVersionNotSupported,
    MalformedRequest,
    NotImplementedInHttp,
)

# Of a head, and of anything that comes without a byte of body: chunk extensions, trailers.
MAX_HEAD_BYTES = 64 << 10
MAX_HEADERS = 128
MAX_PIPELINED = 256  # requests that wait for earlier ones of their connection, some 2 KB each
# What is being read of a request; the next one may arrive before its answer was written.
BETWEEN, HEAD, SLOW_HEAD, BODY = range(4)
NOT_HTTP = "malformed HTTP/1.1 request; the connection is closed"
CHECKED = frozenset((b"host", b"expect", b"transfer-encoding"))  # headers that a rule is about
OTHER_VERSIONS = ("Invalid HTTP version", "Pause on PRI/Upgrade")  # as the parser calls them
HTTP_1 = "this server speaks HTTP/1.1; the connection is closed"
ONE_HOST = "a request needs exactly one Host header; the connection is closed"
ABSOLUTE_FORM = re.compile(rb"https?://([^/?#@]+)([/?][^#]*)?", re.IGNORECASE)
UNREAD = "answer_unread"
UNREAD_S = 10.0  # between two checks of an unread answer
UNREAD_BYTES_PER_S = 1024  # a slower client counts as not reading


class LimitedProtocol(UvicornConnection):
    """A connection with time and memory limits; see uvicorn's class, and `asyncio.Protocol`.

    Args:
        service: has the limits, and the counter of cut connections.
        ids: of the process.
        uvicorn: arguments of uvicorn's own protocol.
    """

    def __init__(self, service: Service, ids: RequestIds, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self.service = service
        self.ids = ids
        self._reads = BETWEEN
        self._bytes_without_body = 0  # since the last byte of body, or the end of a request
        self._trailers = 0
        self._hosts: list[bytes] = []  # of the head that is being read
        self._valid_host = b""  # the last one that was checked
        self._codings: list[bytes] = []  # transfer codings
        self._rejection: CallerError | None = None
        self._is_cut = False
        # A timer for each request would cost 2 us. One timer keeps running and checks whether the
        # client is overdue; None: the server is at work.
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
        if self._reads == BETWEEN:  # the usual case
            return
        if self._reads == BODY:
            self.on_body_pending()
        elif self._reads == HEAD and self._due is not None:
            self._reads = SLOW_HEAD
            self._wait(self.service.limits.head_timeout_s)
        if self._bytes_without_body > MAX_HEAD_BYTES and not self._is_cut:
            self._cut(_too_large())

    def on_body_pending(self) -> None:
        """Called after each read that left a body incomplete."""

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._reads = HEAD
        self._trailers = 0
        self._hosts.clear()
        self._codings.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer: those are dropped (RFC 9110, section 6.5.1).

        Raises:
            CallerError: to the parser, which stops there: too many trailers, or one that would
                change what follows.
        """
        name = name.lower()
        if self._reads == BODY:
            self._trailers += 1
            if self._trailers > MAX_HEADERS:
                self._reject_head(_too_large())
            if name == b"connection":  # the parser would obey it
                self._reject_head(MalformedRequest("a Connection field in a trailer"))
            return
        if name in CHECKED:
            if name == b"host":
                self._hosts.append(value)
            elif name == b"transfer-encoding":
                self._codings.append(value)
            elif value.lower() == b"100-continue":
                self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Have the request answered whose head is complete.

        Raises:
            CallerError: to the parser, which stops there.
        """
        if self.asks_for_upgrade():
            if self.parser.get_method() == b"CONNECT":
                self._reject_head(NotImplementedInHttp("CONNECT is for proxies; this is none"))
            return  # the head comes again, without its Upgrade header
        if (
            self._bytes_without_body > MAX_HEAD_BYTES
            or len(self.headers) > MAX_HEADERS
            or self.pipelined >= MAX_PIPELINED
        ):
            self._check_size()
        self.version = self.parser.get_http_version()
        if self.version != "1.1":
            self._check_other_version()
        elif len(self._hosts) != 1:
            self._reject_head(MalformedRequest(ONE_HOST))
        if self._hosts and self._hosts[0] != self._valid_host:
            self._check_host()
        if self._codings:
            self._check_codings()
        self._reads = BODY
        self._due = None
        self.choose_path()

    def choose_path(self) -> None:
        """Have the request answered by uvicorn's path."""
        if not self.url.startswith(b"/") or b"#" in self.url:
            self._check_target()
        self.answer_by_asgi()

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        self._bytes_without_body = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The last byte of a request."""
        if self._reads in (
            HEAD,
            SLOW_HEAD,
        ):  # of a head that comes again, see `on_headers_complete`
            return
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

    def reject_rest(self, error: CallerError) -> bool:
        """Reject the request that is being read, if it is on the fast path.

        Returns:
            Whether it was.
        """
        return False

    def pause_writing(self) -> None:
        """The client reads more slowly than the server writes."""
        super().pause_writing()
        self._look_at_unread(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """The client has read nearly everything."""
        super().resume_writing()
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def unreadable(self, problem: str) -> None:
        """Cut the connection: what came is not HTTP, or its head was rejected."""
        if self._rejection is None and problem in OTHER_VERSIONS:
            self._rejection = HttpVersionNotSupported(HTTP_1)
        self._cut(self._rejection or MalformedRequest(NOT_HTTP))

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
        if self._due is None:
            self._set_timer(now + self.keep_alive_s)
        elif self._due > now:
            self._set_timer(self._due)
        elif self._reads in (HEAD, SLOW_HEAD):
            limit_s = self.service.limits.head_timeout_s
            self._cut(HeadLate(f"the head of a request must arrive within {limit_s:g} s"))
        else:
            self.transport.close()

    def _reject_head(self, error: CallerError) -> NoReturn:
        """Stop the parser, and have the connection cut with this error."""
        self._rejection = error
        raise error

    def _check_size(self) -> None:
        """Reject a head that is too large, or one pipelined request too many.

        Only the head is measured: other bytes that came may be its body's.
        """
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        many = self.pipelined >= MAX_PIPELINED
        if many or len(self.headers) > MAX_HEADERS or size > MAX_HEAD_BYTES:
            self._reject_head(_too_large())

    def _check_other_version(self) -> None:
        """Reject versions that are not HTTP/1, and what HTTP/1.0 does not have."""
        if self.version != "1.0":
            self._reject_head(HttpVersionNotSupported(HTTP_1))
        if self._codings:  # RFC 9112, section 6.1
            self._reject_head(MalformedRequest("HTTP/1.0 has no Transfer-Encoding"))
        if len(self._hosts) > 1:
            self._reject_head(MalformedRequest(ONE_HOST))
        self.expect_100_continue = False

    def _check_host(self) -> None:
        """Reject a Host header that names none (RFC 9112, section 3.2); empty ones are valid."""
        host = self._hosts[0]
        if host and AUTHORITY.fullmatch(host.lower()) is None:
            self._reject_head(MalformedRequest("the Host header is malformed"))
        self._valid_host = host

    def _check_codings(self) -> None:
        """Reject transfer codings other than chunked (RFC 9112, section 6.1)."""
        codings = b",".join(self._codings).lower().split(b",")
        if codings[-1].strip() != b"chunked":  # RFC 9112, section 6.3: nothing tells the length
            self._reject_head(MalformedRequest("the last Transfer-Encoding must be chunked"))
        if len(codings) > 1:
            self._reject_head(
                NotImplementedInHttp("no Transfer-Encoding but chunked is implemented")
            )

    def _check_target(self) -> None:
        """Take the path out of a target that is a whole URL; reject other forms.

        See RFC 9112, section 3.2. A Host header that differs is rejected, not ignored: a proxy in
        front may have looked at the one or at the other.
        """
        match = ABSOLUTE_FORM.fullmatch(self.url)
        if match is None:
            self._reject_head(
                MalformedRequest("the request target must be a path, without a fragment")
            )
        if self._hosts and match[1].lower() != self._hosts[0].lower():
            self._reject_head(
                MalformedRequest("the request target and the Host header name different hosts")
            )
        path = match[2] or b""
        self.url = path if path.startswith(b"/") else b"/" + path

    def _cut(self, error: CallerError) -> None:
        """Stop reading: the start of the next request is unknown from here on."""
        self._is_cut = True
        self.service.metrics.connections_cut.labels(error.code).inc()
        self.stop_reading()
        if self.is_answered:
            self._send_error(error)
            self.transport.close()
        elif self.reject_rest(error):
            pass
        elif self.reads_body:
            if self.end_application():
                self._send_error(error)
            self.transport.close()
        else:
            self.close_after_answers()

    def _send_error(self, error: CallerError) -> None:
        """Answer bytes that never became a request."""
        scope = {REQUEST_ID: self.ids.of(()).decode("ascii")}
        status, headers, content = error_answer(scope, error)
        headers.append((HEADER, scope[REQUEST_ID].encode()))
        self.write_answer(status, headers, content)

    def _look_at_unread(self, before: int) -> None:
        """Close the connection if its answer stays unread: it would occupy memory without end.

        Args:
            before: bytes unread at the last check.
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
        f"at most {MAX_HEADERS} headers and {MAX_HEAD_BYTES} bytes are allowed before a body, as "
        f"many bytes without body data, and {MAX_PIPELINED} requests before the first is answered"
    )
