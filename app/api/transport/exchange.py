"""A prediction and its answer on the fast path: no task, no scope, no middleware.

The connection reports what it reads. All results and errors end in one place, which writes the
answer and counts it.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import structlog

from app.api.answers import WRITE_BYTES, LargeAnswer
from app.api.calls import BODY_CUT, BODY_LATE, Call
from app.api.endpoints import Endpoint
from app.api.errors import (
    FORM,
    INTERNAL_MESSAGE,
    OUTCOME,
    REQUEST_ID,
    RawAnswer,
    error_answer,
    error_body,
)
from app.api.payloads import check_length
from app.api.request_ids import HEADER
from app.api.transport.host import RequestConnection
from app.api.transport.known_head import KnownHead
from app.api.transport.parsing import RequestParser
from app.engine.submission import Submission
from app.errors import Abandoned, DeadlineExceeded, ShuttingDown, TorchlaneError
from app.telemetry.tracing import RequestTrace

LOG = structlog.get_logger(__name__)

LEFT = "the client disconnected before its answer was written"
SMALL_PIECE_BYTES = 4096  # larger pieces of a body are kept as received, and copied once


class Exchange:
    """A prediction and its answer on one connection.

    Args:
        connection: of the request.
        head: the complete head of the request.
        endpoint: the requested endpoint.

    Attributes:
        response_complete: whether the whole answer has been written.
        keep_alive: whether the connection stays open.
    """

    __slots__ = (
        "_began",
        "_body",
        "_body_bytes",
        "_call",
        "_connection",
        "_endpoint",
        "_fields",
        "_for_browsers",
        "_held_bytes",
        "_is_decided",
        "_large",
        "_request_id",
        "_scope",
        "_submission",
        "_timer",
        "_trace",
        "keep_alive",
        "response_complete",
    )

    def __init__(
        self, connection: RequestConnection, head: RequestParser | KnownHead, endpoint: Endpoint
    ) -> None:
        self.response_complete = False
        self._is_decided = False  # the answer, although it may not be written yet
        self.keep_alive = True
        self._began = time.perf_counter()
        self._connection = connection
        self._endpoint = endpoint
        self._fields = head.fields
        self._request_id = connection.ids.of(head.fields)
        self._for_browsers = connection.service.origins.headers(head.fields)
        self._body: list[bytes | bytearray] = []
        self._body_bytes = 0
        self._held_bytes = 0  # as counted by BodyMemory
        self._call: Call | None = None
        self._submission: Submission | None = None
        self._large: LargeAnswer | None = None  # while it is encoded
        self._timer: asyncio.TimerHandle | None = None
        self._scope: dict[str, Any] = {}  # the part of an ASGI scope that error answers use
        connection.service.metrics.requests_open += 1
        self._trace: RequestTrace | None = None
        if connection.service.tracing.enabled:
            self._trace = self._followed(head)

    def _followed(self, head: RequestParser | KnownHead) -> RequestTrace | None:
        tracing = self._connection.service.tracing
        if not tracing.may_follow(head.headers, head.fields):
            return None
        path = head.url.partition(b"?")[0].decode("latin-1")
        trace = RequestTrace("POST", path, self._endpoint.route, self._request_id, self._began)
        return tracing.begin(trace, head.headers, head.fields)

    def _log_ids(self) -> dict[str, str]:
        return {} if self._trace is None else self._trace.log_ids()

    def open(self, fields: dict[bytes, bytes]) -> None:
        """Check the head, given its headers."""
        try:
            self._call = self._endpoint.call(self._connection.service, self._endpoint, fields)
            self._call.trace = self._trace
            self._call.is_sent_always = True
        except Exception as error:
            self._fail(error)

    def take(self, piece: bytes) -> None:
        """Add a piece of the body."""
        if self._is_decided:
            return
        body = self._body
        self._body_bytes += len(piece)
        if not body or len(piece) >= SMALL_PIECE_BYTES:
            body.append(piece)
        elif isinstance(body[-1], bytearray):  # a client may send a byte at a time
            body[-1] += piece
        else:
            body.append(bytearray(piece))
        try:
            check_length(self._body_bytes, self._connection.service.limits.max_body_bytes)
        except TorchlaneError as error:
            self._fail(error)

    def on_body_end(self) -> None:
        """Submit the body, which is complete."""
        if self._is_decided or self._call is None:
            return
        body = b"".join(self._body)  # most bodies come in one piece, which is not copied
        self._end_body()
        try:
            submission = self._call.begin(body, self._request_id)
        except Exception as error:
            self._fail(error)
            return
        self._submission = submission
        if submission.is_settled:
            self._settled()
        else:
            submission.when_settled(self._settled)

    def on_body_pending(self) -> None:
        """Start the body timeout and count the bytes received so far."""
        if self._submission is not None or self._is_decided:
            return
        service = self._connection.service
        try:
            self._held_bytes = service.bodies.hold(self._body_bytes, self._held_bytes)
        except TorchlaneError as error:
            self._fail(error)
            return
        if self._timer is None:
            left_s = self._call.deadline - service.engine.now() if self._call else 0.0
            late = DeadlineExceeded(BODY_LATE)
            self._timer = self._connection.loop.call_later(max(0.0, left_s), self._fail, late)

    def be_last(self) -> None:
        """Close the connection behind the answer, if its head can still say so."""
        if not self._is_decided:
            self.keep_alive = False

    def reject(self, error: TorchlaneError) -> None:
        """Answer with an error and read nothing more from the connection."""
        self.keep_alive = False
        if self._submission is None:
            self._fail(error)

    def give_up(self) -> None:
        """Answer a request whose body is incomplete, because the server stops."""
        if self._submission is None:
            self._fail(ShuttingDown("the server stopped before the request was complete"))

    def disconnected(self) -> None:
        """Abandon the request, because the client has disconnected."""
        if self._is_decided:
            self._sent()
        elif self._large is not None:
            self._large.cancel()
            self._fail(Abandoned(LEFT))
        elif self._submission is None:
            self._fail(Abandoned(BODY_CUT))
        else:
            self._submission.abandon()

    def _settled(self) -> None:
        try:
            answer = self._call.answer() if self._call else None
        except Exception as error:
            self._fail(error)
            return
        if isinstance(answer, LargeAnswer):
            self._large = answer
            answer.start(self._encoded)
        elif answer is not None:
            self._write(answer)

    def _encoded(self, answer: RawAnswer | Exception) -> None:
        """Write an answer that was encoded in slices."""
        self._large = None
        if isinstance(answer, Exception):
            self._fail(answer)
        else:
            self._write(answer)

    def _fail(self, error: Exception) -> None:
        if not self._is_decided:
            self._end_body()
            self._write(self._error_answer(error))

    def _error_answer(self, error: Exception) -> RawAnswer:
        if self._trace is not None:
            self._trace.error = error
        self._scope[REQUEST_ID] = self._request_id.decode("ascii")
        dialect = self._connection.service.dialects.of_route(self._endpoint.route)
        self._scope[FORM] = dialect.errors
        if isinstance(error, TorchlaneError):
            try:
                status, headers, content = error_answer(self._scope, error)
                if self._call is not None:
                    headers += self._call.version_header()
                return status, headers, content
            except Exception as bug:  # the table lacks it, or its details are not JSON
                error = bug
        request_id = self._scope[REQUEST_ID]
        LOG.error("unhandled_error", exc_info=error, request_id=request_id, **self._log_ids())
        content = error_body(self._scope, 500, "internal", INTERNAL_MESSAGE)
        length = (b"content-length", b"%d" % len(content))
        return 500, [(b"content-type", b"application/json"), length], content

    def _write(self, answer: RawAnswer) -> None:
        """Write the answer, and count it: every exchange passes here once."""
        status, headers, content = answer
        writer = self._connection.writer
        self._is_decided = True
        is_long = False
        sent = 0
        if writer.can_answer:
            sent = len(content)
            is_long = len(content) > WRITE_BYTES
            if not self.keep_alive or (b"connection", b"close") in headers:
                self.keep_alive = False
                headers = [each for each in headers if each[0] != b"connection"]
                headers.append((b"connection", b"close"))
            headers.append((HEADER, self._request_id))
            headers += self._for_browsers
            writer.write_answer(status, headers, b"" if is_long else content)
        try:
            self._count(status, sent)
        except Exception:  # the client has its answer, and the connection continues
            LOG.exception("request_not_counted", **self._log_ids())
        if is_long:
            writer.write_in_pieces(content, self._sent)
        else:
            self._sent()

    def _sent(self) -> None:
        """End the exchange, whose answer is written, or whose client has left."""
        if self.response_complete:
            return
        self.response_complete = True
        if self._call is not None and self._call.counted:
            self._call.sent()
        self._call = self._submission = None  # an idle connection keeps its last exchange
        if not self.keep_alive:
            self._connection.close_behind_answer()
        self._connection.answered()

    def _end_body(self) -> None:
        """Drop the body, which is complete or no longer wanted, and stop waiting for the rest."""
        if self._timer is not None:
            self._timer.cancel()
        self._body.clear()
        if self._held_bytes:
            self._connection.service.bodies.give_back(self._held_bytes)
            self._held_bytes = 0

    def _count(self, status: int, sent: int) -> None:
        """Count the request, and report it to those that follow it, and to the log."""
        metrics = self._connection.service.metrics
        metrics.requests_open -= 1
        outcome = self._scope.get(OUTCOME, "ok")
        ended = metrics.request(self._endpoint.route, status, outcome)
        seconds, trace = time.perf_counter() - self._began, self._trace
        ended.count(seconds, trace.trace_id if trace is not None else "")
        service = self._connection.service
        is_logged = service.access_log.wants(status, seconds)
        if trace is None and not is_logged:
            return
        endpoint = self._endpoint
        if trace is None:
            trace = RequestTrace("POST", "", endpoint.route, self._request_id, self._began)
        trace.name, trace.version = endpoint.name or "", endpoint.version or ""
        trace.bytes_in, trace.bytes_out = self._body_bytes, sent
        if self._call is not None:
            self._call.describe(trace)
        service.tracing.end(trace, status, outcome)
        if is_logged:
            service.access_log.write(trace, self._fields)
