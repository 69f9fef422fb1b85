"""A request that the ASGI application answers; predictions usually become an `Exchange` instead.

See the specification of ASGI (https://asgi.readthedocs.io), version 3.0, HTTP 2.3.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from urllib.parse import unquote

import structlog
from starlette.types import Message

from app.api.errors import CUT, REQUEST_ID, TRANSPORT, Cut
from app.api.transport.host import RequestConnection
from app.api.transport.parsing import RequestParser
from app.errors import TorchlaneError

LOG = structlog.get_logger(__name__)
BODY_BYTES = 64 << 10  # received and not taken by the application; beyond this nothing is read
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
WITHOUT_BODY = (204, 304)
NO_NAME = re.compile(rb'[\x00-\x1f\x7f()<>@,;:\[\]={} \t\\"]')
NO_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
START, BODY = "http.response.start", "http.response.body"
FAILED = (
    (b"content-type", b"text/plain; charset=utf-8"),
    (b"content-length", b"21"),
    (b"connection", b"close"),
)


class Cycle:
    """A request and its answer by the application.

    Args:
        connection: of the request.
        head: the complete head of the request.

    Attributes:
        response_complete: whether the whole answer has been written.
        keep_alive: whether the connection stays open.

    Raises:
        UnicodeDecodeError: if the path is not ASCII.
    """

    def __init__(self, connection: RequestConnection, head: RequestParser) -> None:
        self.response_complete = False
        self.keep_alive = head.keeps_alive
        self._expects = head.expects
        self._connection = connection
        self._body = bytearray()
        self._more_body = True
        self._is_gone = False  # nothing more can be answered
        self._news = asyncio.Event()  # for `_receive`
        self._is_started = False
        self._is_chunked = False
        self._has_body = True  # of the answer
        self._left: int | None = None  # of an answer of known length
        path, _, query = head.url.partition(b"?")
        text = path.decode("ascii")
        scope = self._scope = connection.host.scope.copy()
        root: str = scope["root_path"]
        scope["http_version"] = head.version
        scope["method"] = head.method.decode("ascii")
        scope["path"] = root + (unquote(text) if "%" in text else text)
        scope["raw_path"] = root.encode("ascii") + path
        scope["query_string"] = query
        scope["headers"] = head.headers
        scope["state"] = scope["state"].copy()
        scope[TRANSPORT] = connection.transport
        self._request_id = connection.ids.of(head.fields)
        scope[REQUEST_ID] = self._request_id.decode("ascii")
        self._cut: list[Cut] = []
        scope[CUT] = self._cut

    def start(self) -> None:
        """Call the application."""
        tasks = self._connection.host.state.tasks
        task = self._connection.loop.create_task(self._run())
        task.add_done_callback(tasks.discard)
        tasks.add(task)

    def take(self, piece: bytes) -> None:
        """Add a piece of the body."""
        if self.response_complete:
            return
        self._body += piece
        if len(self._body) > BODY_BYTES:
            self._connection.reader.pause()
        self._news.set()

    def on_body_end(self) -> None:
        """The body is complete."""
        self._more_body = False
        self._news.set()

    def on_body_pending(self) -> None:
        """The application limits the time for a body."""

    def be_last(self) -> None:
        """Close the connection behind the answer, if its head can still say so."""
        if not self._is_started:
            self.keep_alive = False

    def reject(self, error: TorchlaneError) -> None:
        """Answer with an error, unless the body is complete, and then close."""
        self.keep_alive = False
        if not self._more_body:
            return
        if self._is_started:
            self._connection.transport.close()
        else:
            self.disconnected()
            status, _, content = self._connection.send_error(error, self._request_id)
            self._cut.append((status, error.code, len(content)))
            self._connection.close_behind_answer()

    def give_up(self) -> None:
        """The server cancels its tasks when it stops."""

    def disconnected(self) -> None:
        """Tell the application that the client has disconnected."""
        self._is_gone = True
        self._news.set()

    async def _run(self) -> None:
        try:
            await self._connection.host.app(self._scope, self._receive, self._send)
        except asyncio.CancelledError:  # the server stops
            pass
        except Exception:
            LOG.exception("application_failed", path=self._scope["path"])
        else:
            if not (self.response_complete or self._is_gone or self._cut):
                LOG.error("answer_not_complete", path=self._scope["path"])
        if self.response_complete or self._is_gone:
            return
        if self._is_started:  # only the end of the connection signals the error
            self._connection.close_behind_answer()
        else:
            await self._send({"type": START, "status": 500, "headers": FAILED})
            await self._send({"type": BODY, "body": b"Internal Server Error"})

    async def _receive(self) -> Message:
        connection = self._connection
        if self._expects:
            self._expects = False
            connection.writer.write(CONTINUE)
        if not (self._is_gone or self.response_complete):
            connection.reader.resume()
            await self._news.wait()
            self._news.clear()
        if self._is_gone or self.response_complete:
            return {"type": "http.disconnect"}
        body, self._body = bytes(self._body), bytearray()
        return {"type": "http.request", "body": body, "more_body": self._more_body}

    async def _send(self, message: Message) -> None:
        """Write a part of an answer.

        Raises:
            RuntimeError: if the part does not follow from what was sent before.
        """
        writer = self._connection.writer
        if writer.is_paused and not self._is_gone:
            await writer.drained.wait()
        if self._is_gone:
            return
        if self.response_complete:
            raise RuntimeError("the application sent more than its answer")
        expected = BODY if self._is_started else START
        if message["type"] != expected:
            raise RuntimeError(f"the application sent {message['type']!r}, not {expected!r}")
        if self._is_started:
            self._send_body(message.get("body", b""), message.get("more_body", False))
        else:
            self._send_head(message["status"], message.get("headers", ()))

    def _send_head(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        lines: list[tuple[bytes, bytes]] = []
        left: int | None = None
        is_chunked = closes = False
        for original, value in headers:
            if NO_NAME.search(original) or NO_VALUE.search(value):
                raise RuntimeError(f"the application sent a bad header: {original!r}: {value!r}")
            name = original.lower()
            if name == b"content-length":
                left = int(value)
            elif name == b"transfer-encoding":
                is_chunked = value.lower() == b"chunked"
            elif name == b"connection":
                closes = closes or b"close" in value.lower()
            lines.append((name, value))
        if closes:
            self.keep_alive = False
        elif not self.keep_alive:
            lines.append((b"connection", b"close"))
        if self._scope["method"] == "HEAD" or status in WITHOUT_BODY:
            self._has_body, left = False, None
        elif left is None and not is_chunked and self._scope["http_version"] != "1.0":
            is_chunked = True  # HTTP/1.0 knows no chunks: the connection's end is the body's
            lines.append((b"transfer-encoding", b"chunked"))
        self._left, self._is_chunked = left, is_chunked
        self._is_started, self._expects = True, False
        writer = self._connection.writer
        if writer.can_answer:
            writer.left = left or 0
            writer.write_answer(status, lines, b"")

    def _send_body(self, body: bytes, more_body: bool) -> None:
        connection = self._connection
        writer = connection.writer
        if not self._has_body:
            body = b""
        elif self._is_chunked:
            body = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            if not more_body:
                body += b"0\r\n\r\n"
        elif self._left is not None:
            self._left -= len(body)
            if self._left < 0 or (self._left and not more_body):
                raise RuntimeError("the application's answer and its Content-Length differ")
            writer.left = self._left
        if body:
            writer.write(body)
        if not more_body:
            self.response_complete = True
            self._news.set()
            if not self.keep_alive:
                connection.close_behind_answer()
            connection.answered()
