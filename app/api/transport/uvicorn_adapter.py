"""uvicorn's HTTP connection, with a name for each of its internals that this application uses.

No other file of `api` imports uvicorn: changes for another uvicorn release belong here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Any, Protocol, cast

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from app.api.answers import WRITE_BYTES
from app.api.errors import TRANSPORT


class Occupant(Protocol):
    """A replacement of uvicorn's cycle for the last request that was read.

    Attributes:
        response_complete: whether the answer has been written.
        keep_alive: whether the connection stays open; set to False when the server stops.
    """

    response_complete: bool
    keep_alive: bool


class CycleTransport:
    """The transport of uvicorn's cycle, which closes without cutting off the answer.

    Args:
        connection: the cycle's connection.
    """

    def __init__(self, connection: UvicornConnection) -> None:
        self._connection = connection

    def is_closing(self) -> bool:
        """Whether nothing more can be written."""
        return not self._connection.can_answer

    def write(self, data: bytes) -> None:
        """Write a part of an answer, if still possible."""
        if self._connection.can_answer:
            self._connection.transport.write(data)

    def close(self) -> None:
        """End the connection after the last answer."""
        self._connection.close_behind_answer()


class Flow(FlowControl):
    """uvicorn's flow control, with a second reason not to read; either suffices.

    Args:
        transport: the connection's transport.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._is_held = False
        self._is_paused = False  # by the application, which does not read its body

    def pause_reading(self) -> None:
        """See uvicorn's class."""
        self._is_paused = True
        super().pause_reading()

    def resume_reading(self) -> None:
        """See uvicorn's class."""
        self._is_paused = False
        if not self._is_held:
            super().resume_reading()

    def hold(self) -> None:
        """Read nothing until `release`."""
        self._is_held = True
        super().pause_reading()

    def release(self) -> None:
        """Read again, unless the application does not."""
        self._is_held = False
        if not self._is_paused:
            super().resume_reading()


class UvicornConnection(HttpToolsProtocol):
    """One connection; see uvicorn's class and `asyncio.Protocol`.

    Args:
        uvicorn: arguments of uvicorn's own protocol.

    Attributes:
        version: HTTP version of the last complete head.
        fields: the headers of that head, the last value of each name.
        keep_alive_s: how long an idle connection stays open.
        is_plain: whether uvicorn only calls the application for a request.
    """

    def __init__(self, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        mine: Any = self
        self.version = "1.1"
        self.fields: dict[bytes, bytes] = {}
        self.keep_alive_s = float(mine.timeout_keep_alive)  # uvicorn types it as int
        self.is_plain = (
            not self.access_log and self.limit_concurrency is None and not self.root_path
        )
        self._rest = memoryview(b"")  # of a content that is written in pieces
        self._on_sent: Callable[[], None] | None = None

    @property
    def is_answered(self) -> bool:
        """Whether all requests that were read are answered."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def reads_body(self) -> bool:
        """Whether the application waits for more of the last request's body."""
        return self.cycle.more_body

    def is_common_post(self) -> bool:
        """Whether the head that was read is an ordinary POST."""
        parser = self.parser
        return (
            parser.get_method() == b"POST"
            and self.version == "1.1"
            and parser.should_keep_alive()
            and not self.expect_100_continue
        )

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self.flow = self._flow = Flow(transport)

    def feed(self, data: bytes | memoryview) -> None:
        """Parse received data.

        Replaces a method of uvicorn, which logs a warning for each malformed request and, after an
        upgrade that was not accepted, reads the body as if it were the next request.
        """
        unread = data
        while unread:
            try:
                self.parser.feed_data(unread)
                return
            except httptools.HttpParserUpgrade as upgrade:
                unread = b"".join((self._head_without_upgrade(), unread[upgrade.args[0] :]))
            except httptools.HttpParserError as error:
                self.unreadable(error)
                return

    def _head_without_upgrade(self) -> bytes:
        """The last head for a new parser, without Upgrade headers (RFC 9110, section 7.8).

        The parser stops after a head that requests an upgrade, and cannot be made to read the body
        as usual.
        """
        parts = [self.parser.get_method(), b" ", self.url]
        parts += (b" HTTP/", self.parser.get_http_version().encode(), b"\r\n")
        for name, value in self.headers:
            if name != b"upgrade":
                parts += (name, b": ", value, b"\r\n")
        self.parser = httptools.HttpRequestParser(self)
        # As in uvicorn: data after a request with `Connection: close` is ignored.
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return b"".join((*parts, b"\r\n"))

    def asks_for_upgrade(self) -> bool:
        """Whether the head requests another protocol, so that it must be parsed again."""
        return self.parser.should_upgrade()

    def on_message_begin(self) -> None:
        """The first byte of a request; its scope is created only when needed."""
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def answer_by_asgi(self) -> None:
        """Let the application answer the request whose head was read."""
        url, headers, expect = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()  # creates the scope, with its own headers
        self.url, self.expect_100_continue = url, expect
        self.headers.extend(headers)
        super().on_headers_complete()

    def occupy(self, occupant: Occupant) -> None:
        """Replace uvicorn's cycle with an occupant, which has the attributes that uvicorn reads."""
        self.cycle = cast(RequestResponseCycle, occupant)

    @property
    def _asgi_cycle(self) -> RequestResponseCycle | None:
        """Uvicorn's own cycle, if it has the last request that was read."""
        cycle: object = self.cycle
        return cycle if isinstance(cycle, RequestResponseCycle) else None

    def occupant_ended(self) -> None:
        """Count an answered request; uvicorn's own bookkeeping would cost a timer."""
        self.server_state.total_requests += 1

    def hold_reading(self) -> None:
        """Read no more bytes from the client until `release_reading`."""
        self._flow.hold()

    def release_reading(self) -> None:
        """Read again, unless the application does not read its body."""
        if not self.transport.is_closing():
            self._flow.release()

    def resume_reading(self) -> None:
        """Read again after the application has left a body unread."""
        self.flow.resume_reading()

    def stop_reading(self) -> None:
        """Read no more bytes from the client."""
        self.flow.pause_reading()

    def end_writing(self) -> None:
        """Send what was written, then the end of the stream; continue to read."""
        with contextlib.suppress(OSError):  # the client disconnected; the next read reports it
            self.transport.write_eof()
        self.flow.resume_reading()

    def end_application(self) -> bool:
        """Report a disconnect to the application, so that an answer can be written in its place.

        Returns:
            Whether the application was waiting for the rest of a body and had not answered.
        """
        cycle = self._asgi_cycle
        if cycle is None or cycle.response_started:
            return False
        cycle.disconnected = True
        cycle.message_event.set()
        return True

    def close_after_answer(self) -> None:
        """Answer the request that was read, then close."""
        self.cycle.keep_alive = False

    def write_answer(
        self, status: int, headers: Iterable[tuple[bytes, bytes]], content: bytes
    ) -> None:
        """Write a whole answer, with the default headers."""
        parts = [STATUS_LINE[status]]
        for name, value in (*self.server_state.default_headers, *headers):
            parts += (name, b": ", value, b"\r\n")
        parts += (b"\r\n", content)
        self.transport.write(b"".join(parts))

    @property
    def unwritten(self) -> int:
        """Bytes of an answer in pieces that its transport has not got yet."""
        cycle = self._asgi_cycle
        if cycle is None or cycle.response_complete:
            return len(self._rest)
        return len(self._rest) + cycle.expected_content_length

    def write_in_pieces(self, content: bytes, sent: Callable[[], None]) -> None:
        """Write a long content as the client reads it; then call `sent`, unless it leaves.

        Each piece has a turn of the event loop: a fast client would otherwise block it.
        """
        self._rest, self._on_sent = memoryview(content), sent
        self.loop.call_soon(self._write_more)

    def _write_more(self) -> None:
        sent = self._on_sent
        if sent is None or self.flow.write_paused or not self.can_answer:
            return
        piece, self._rest = self._rest[:WRITE_BYTES], self._rest[WRITE_BYTES:]
        self.transport.write(piece)
        if not self._rest:
            self._rest, self._on_sent = memoryview(b""), None  # frees the content
            sent()
        elif not self.flow.write_paused:  # else `resume_writing` goes on
            self.loop.call_soon(self._write_more)

    def resume_writing(self) -> None:
        """The client has read nearly everything that was written."""
        super().resume_writing()
        self._write_more()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._rest, self._on_sent = memoryview(b""), None
        if self._asgi_cycle is None:  # uvicorn would treat an occupant as its own cycle
            self.cycle = None  # type: ignore[assignment]  # as before the first request
        super().connection_lost(exc)
        # Otherwise the connection and its cycle would wait for the garbage collector.
        self.cycle = None  # type: ignore[assignment]

    def unreadable(self, error: httptools.HttpParserError) -> None:
        """Handle data that is not HTTP, or an error that a parser callback raised.

        Args:
            error: the parser's error; its context is the callback's error.
        """
        raise NotImplementedError

    @property
    def can_answer(self) -> bool:
        """Whether anything more can be written."""
        raise NotImplementedError

    def close_behind_answer(self) -> None:
        """Close, but let the client read what was written."""
        raise NotImplementedError

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """Give the cycle our transport; every request on uvicorn's path begins here."""
        cycle.transport = cast(asyncio.Transport, CycleTransport(self))
        cast(dict[str, Any], cycle.scope)[TRANSPORT] = self.transport
        super()._start_asgi_task(cycle, app)
