"""Parses the requests of a connection with llhttp, by the rules of `head.py`, and within limits."""

from __future__ import annotations

from typing import Any, Protocol

import httptools

from app.api.negotiation import fields_of
from app.api.transport.head import (
    check_head,
    check_trailers,
    line_tail,
    path_of,
    unreadable,
    without_upgrade,
)
from app.errors import CallerError, HeadTooLarge, NotImplementedInHttp

# Limit of a head, and of any data without body bytes: chunk extensions, trailers.
MAX_HEAD_BYTES = 64 << 10
MAX_HEADERS = 128
# The part of a request being read; NOTHING: what follows is not read.
BETWEEN, HEAD, SLOW_HEAD, BODY, NOTHING = range(5)


class ParsedConnection(Protocol):
    """What a parser calls."""

    def on_head(self) -> None:
        """A head is complete."""

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""

    def on_request_end(self) -> None:
        """The last byte of a request."""


class RequestParser:
    """Parses one request after another.

    Args:
        connection: is told of each part.

    Attributes:
        reads: the part of a request that is read next.
        url: path and query of the head that is being read, or was read last.
        headers: its headers, with names in lower case; then the trailers.
        fields: the headers of the last complete head, the last value of each name.
        version: HTTP version of the last complete head.
        bytes_without_body: since the last byte of body, or the end of a request.
        body_left: bytes that a body of known length lacks, otherwise 0 or less.
        llhttp: parses the bytes.
    """

    def __init__(self, connection: ParsedConnection) -> None:
        self.reads = BETWEEN
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.fields: dict[bytes, bytes] = {}
        self.version = "1.1"
        self.body_left = 0
        self.llhttp: Any = None
        self._connection: ParsedConnection | None = connection
        self.bytes_without_body = 0
        self._valid_host: bytes | None = None  # the last Host that was checked
        self._line_tail = b""  # of an incomplete request line
        self._renew()

    def _renew(self) -> None:
        self.llhttp = httptools.HttpRequestParser(self)
        # Data after a request with `Connection: close` is ignored, and does not spoil the answer.
        self.llhttp.set_dangerous_leniencies(lenient_data_after_close=True)

    @property
    def method(self) -> bytes:
        """The method of the last complete head."""
        method: bytes = self.llhttp.get_method()
        return method

    @property
    def keeps_alive(self) -> bool:
        """Whether another request may follow; never in HTTP/1.0."""
        return self.version == "1.1" and bool(self.llhttp.should_keep_alive())

    @property
    def expects(self) -> bool:
        """Whether the client waits for an interim answer, which HTTP/1.0 does not have."""
        expected = self.fields.get(b"expect")
        if expected is None:  # the usual case
            return False
        return expected.lower() == b"100-continue" and self.version == "1.1"

    def lost(self) -> None:
        """The connection is closed."""
        self.reads = NOTHING
        self._connection = self.llhttp = None  # all would wait for the garbage collector

    def parse(self, piece: bytes | memoryview) -> None:
        """Parse the next bytes, which contain the end of at most one request.

        Raises:
            CallerError: if they are no HTTP, or violate a rule; parse nothing after it.
        """
        self.bytes_without_body += len(piece)
        if self.reads == BETWEEN or self._line_tail:
            try:
                self._line_tail = line_tail(self._line_tail, piece)
            except CallerError:
                self.url = b""  # that of an earlier request, if any
                raise
        unread = piece
        while unread:
            try:
                self.llhttp.feed_data(unread)
                break
            except httptools.HttpParserUpgrade as upgrade:
                version = self.llhttp.get_http_version()
                head = without_upgrade(self.method, self.url, version, self.headers)
                self._renew()
                unread = b"".join((head, unread[upgrade.args[0] :]))
            except httptools.HttpParserError as error:
                rejection = error.__context__  # raised by a method that llhttp called
                if isinstance(rejection, CallerError):
                    raise rejection from None
                raise unreadable(str(error)) from None
        if self.bytes_without_body > MAX_HEAD_BYTES and self.reads != NOTHING:
            raise _too_large()

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self.url = b""
        self.headers = []
        self.reads = HEAD

    def on_url(self, part: bytes) -> None:
        """A part of the request's target."""
        self.url += part

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer after a body."""
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The end of a head.

        Raises:
            CallerError: to llhttp, which then stops.
        """
        llhttp = self.llhttp
        if llhttp.should_upgrade():
            if llhttp.get_method() == b"CONNECT":
                raise NotImplementedInHttp("CONNECT is for proxies; this server is not a proxy")
            return  # the head will be parsed again without its Upgrade header
        headers = self.headers
        if self.bytes_without_body > MAX_HEAD_BYTES or len(headers) > MAX_HEADERS:
            raise _too_large()
        version = self.version = llhttp.get_http_version()
        fields = self.fields = dict(headers)
        host = fields.get(b"host")
        if (
            version != "1.1"
            or host is None
            or host != self._valid_host
            or len(fields) != len(headers)
            or b"transfer-encoding" in fields
        ):
            fields = self.fields = fields_of(headers)
            check_head(version, headers, fields)
            self._valid_host = host
        if not self.url.startswith(b"/") or b"#" in self.url:
            self.url = path_of(self.url, host or b"")
        self.reads = BODY
        length = fields.get(b"content-length")
        self.body_left = int(length) if length else 0
        if self._connection is not None:
            self._connection.on_head()
        self.headers = []  # for trailers, which must not become headers (RFC 9110, section 6.5.1)

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        self.bytes_without_body = 0
        self.body_left -= len(body)
        if self._connection is not None:
            self._connection.on_body(body)

    def on_message_complete(self) -> None:
        """The last byte of a request.

        Raises:
            CallerError: to llhttp, which then stops: the trailers are invalid.
        """
        if self.reads != BODY:  # the head will be parsed again, or nothing more is read
            return
        if self.headers:
            check_trailers(self.headers)
            if len(self.headers) > MAX_HEADERS:
                raise _too_large()
        self.reads = BETWEEN
        self.bytes_without_body = self.body_left = 0
        if self._connection is not None:
            self._connection.on_request_end()


def _too_large() -> HeadTooLarge:
    return HeadTooLarge(
        f"at most {MAX_HEADERS} headers and {MAX_HEAD_BYTES} bytes are allowed before a body, and "
        "as many bytes without body data"
    )
