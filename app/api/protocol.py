"""The HTTP protocol of our server: uvicorn's, with a short way for predictions.

A prediction that comes as most do is answered without a task, a scope and two middlewares, all of
which cost more than to parse its body. What is out of the ordinary (pipelined, `Expect`, HTTP/1.0,
an access log, a slow reader), and every other path, goes uvicorn's own way to the ASGI application,
which answers predictions just the same: see `predict.py`.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from typing import Any, cast

import structlog
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from app.api.calls import BODY_CUT, BODY_LATE, Call, Endpoint
from app.api.errors import (
    INTERNAL_MESSAGE,
    OUTCOME,
    REQUEST_ID,
    RawAnswer,
    error_answer,
    error_body,
)
from app.api.payloads import check_length
from app.api.request_ids import HEADER, RequestIds
from app.api.service import Service
from app.engine.submission import Submission
from app.errors import Abandoned, DeadlineExceeded, ShuttingDown, TorchlaneError

LOG = structlog.get_logger(__name__)
PATH = re.compile(
    rb"(?:/models/([A-Za-z0-9_-]+)(?:/versions/([0-9]{1,9}))?)?/(predict|batch-predict)"
)
MOST_PATHS = 256  # that are remembered: they come from clients


class Endpoints:
    """Which paths take the short way."""

    def __init__(self) -> None:
        self._known: dict[bytes, Endpoint] = {}

    def at(self, url: bytes) -> Endpoint | None:
        """What a prediction's path asks for; None: it is another path, or one with a query."""
        endpoint = self._known.get(url)
        if endpoint is None and (match := PATH.fullmatch(url)):
            name, version, call = (each.decode("ascii") for each in match.groups(b""))
            prefix = "/models/{name}" * bool(name) + "/versions/{version}" * bool(version)
            many = call == "batch-predict"
            endpoint = Endpoint(f"{prefix}/{call}", many, name or None, version or None)
            if len(self._known) < MOST_PATHS:
                self._known[url] = endpoint
        return endpoint


class Protocol(HttpToolsProtocol):
    """One connection; see `uvicorn`'s class, and `asyncio.Protocol`.

    Args:
        service: engine, models and limits.
        ids: of the process.
        endpoints: of the process.
        uvicorn: what uvicorn gives to each of its protocols.
    """

    def __init__(
        self, service: Service, ids: RequestIds, endpoints: Endpoints, **uvicorn: Any
    ) -> None:
        super().__init__(**uvicorn)
        self.service = service
        self.ids = ids
        self._endpoints = endpoints
        self._exchange: Exchange | None = None
        self._short_way = (
            not self.access_log and self.limit_concurrency is None and not self.root_path
        )
        # A timer for each request would cost 2 us: one runs on and looks when the last one ended.
        self._idle_timer: asyncio.TimerHandle | None = None
        self._idle_since: float | None = None

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        super().data_received(data)
        if self._exchange is not None:
            self._exchange.hurry()
        elif self._idle_since is not None:  # the rest of a body that was refused by its head
            self._idle_since = self.loop.time()

    def on_message_begin(self) -> None:
        """A request begins; uvicorn's scope is made when it is known to be needed."""
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._idle_since = None

    def on_headers_complete(self) -> None:
        """Choose the way."""
        endpoint = self._endpoints.at(self.url) if self._takes_short_way() else None
        if endpoint is not None:
            exchange = self._exchange = Exchange(self, endpoint)
            self.cycle = cast(RequestResponseCycle, exchange)  # in what uvicorn looks at, it is one
            exchange.open()
            return
        url, headers, expect = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expect
        self.headers.extend(headers)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        if self._exchange is not None and self._reads(self._exchange):
            self._exchange.take(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The body is complete."""
        if self._exchange is not None and self._reads(self._exchange):
            self._exchange.begin()
        else:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """An answer has been written."""
        self._idle_since = None if self.pipeline else self.loop.time()
        super().on_response_complete()

    def exchanged(self) -> None:
        """An answer has been written, the short way."""
        self._exchange = None
        if self.pipeline:
            self.on_response_complete()
            return
        self.server_state.total_requests += 1
        self._idle_since = self.loop.time()
        if self._idle_timer is None and not self.transport.is_closing():
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._close_if_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._exchange is not None:
            self._exchange.disconnected()
        current: object = self.cycle
        if isinstance(current, Exchange):  # uvicorn would tell it the ASGI way
            self.cycle = None  # type: ignore[assignment]  # as before the first request
        super().connection_lost(exc)

    def give_up(self) -> None:
        """The server stops now: answer what waits for the rest of its body."""
        if self._exchange is not None:
            self._exchange.give_up()

    def _reads(self, exchange: Exchange) -> bool:
        """Whether what is read belongs to it, and not to a pipelined request behind it."""
        current: object = self.cycle
        return current is exchange

    def _takes_short_way(self) -> bool:
        parser = self.parser
        return (
            self._short_way
            and parser.get_method() == b"POST"
            and (self.cycle is None or self.cycle.response_complete)
            and parser.get_http_version() == "1.1"
            and parser.should_keep_alive()
            and not parser.should_upgrade()
            and not self.expect_100_continue
            and not self.flow.write_paused
        )

    def _close_if_idle(self) -> None:
        self._idle_timer = None
        if self.transport.is_closing():
            return
        wait_s = float(self.timeout_keep_alive)
        if self._idle_since is not None:
            wait_s -= self.loop.time() - self._idle_since
        if wait_s <= 0:
            self.transport.close()
        else:
            self._idle_timer = self.loop.call_later(wait_s, self._close_if_idle)


class Exchange:
    """A prediction and its answer on one connection; stands where uvicorn keeps its own cycle.

    Args:
        protocol: the connection; its head has been read.
        endpoint: what is asked for.

    Attributes:
        response_complete: whether the answer has been written, as uvicorn wants to know.
        keep_alive: whether the connection stays; uvicorn sets it to False when it stops.
    """

    __slots__ = (
        "_began",
        "_body",
        "_call",
        "_endpoint",
        "_protocol",
        "_request_id",
        "_scope",
        "_size",
        "_submission",
        "_timer",
        "keep_alive",
        "response_complete",
    )

    def __init__(self, protocol: Protocol, endpoint: Endpoint) -> None:
        self.response_complete = False
        self.keep_alive = True
        self._began = time.perf_counter()
        self._protocol = protocol
        self._endpoint = endpoint
        self._request_id = protocol.ids.of(protocol.headers)
        self._body: list[bytes] = []
        self._size = 0
        self._call: Call | None = None
        self._submission: Submission | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._scope: dict[str, Any] = {}  # what errors are told of: as much of a scope as they read
        protocol.service.metrics.requests_open += 1

    def open(self) -> None:
        """Look at the head."""
        try:
            protocol = self._protocol
            self._call = Call(protocol.service, self._endpoint, protocol.headers)
        except Exception as error:
            self._fail(error)

    def take(self, piece: bytes) -> None:
        """A piece of the body."""
        if self.response_complete:
            return
        self._body.append(piece)
        self._size += len(piece)
        try:
            check_length(self._size, self._protocol.service.limits.max_body_bytes)
        except TorchlaneError as error:
            self._fail(error)

    def begin(self) -> None:
        """The body is complete."""
        if self.response_complete or self._call is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body.clear()
        try:
            submission = self._call.begin(body)
        except Exception as error:
            self._fail(error)
            return
        self._submission = submission
        if submission.is_settled:
            self._settled()
        else:
            submission.when_settled(self._settled)

    def hurry(self) -> None:
        """What had arrived has been read: is the body still to come, it has its time."""
        if self._submission is None and self._timer is None and not self.response_complete:
            service = self._protocol.service
            left_s = self._call.deadline - service.engine.now() if self._call else 0.0
            late = DeadlineExceeded(BODY_LATE)
            self._timer = self._protocol.loop.call_later(max(0.0, left_s), self._fail, late)

    def give_up(self) -> None:
        """The server stops: a body that is not here yet will not be waited for."""
        if self._submission is None:
            self._fail(ShuttingDown("the server stopped before the request was complete"))

    def disconnected(self) -> None:
        """The client has gone."""
        if self._submission is None:
            self._fail(Abandoned(BODY_CUT))
        else:
            self._submission.abandon()

    def _settled(self) -> None:
        try:
            answer = self._call.answer() if self._call else None
        except Exception as error:
            self._fail(error)
            return
        if answer is not None:
            self._write(answer)

    def _fail(self, error: Exception) -> None:
        if not self.response_complete:
            self._write(self._error_answer(error))

    def _error_answer(self, error: Exception) -> RawAnswer:
        self._scope[REQUEST_ID] = self._request_id.decode("ascii")
        try:
            if isinstance(error, TorchlaneError):
                return error_answer(self._scope, error)
        except TorchlaneError:  # it has no place in the table: a bug
            pass
        LOG.error("unhandled_error", exc_info=error, request_id=self._scope[REQUEST_ID])
        content = error_body(self._scope, "internal", INTERNAL_MESSAGE)
        length = (b"content-length", b"%d" % len(content))
        return 500, [(b"content-type", b"application/json"), length], content

    def _write(self, answer: RawAnswer) -> None:
        """The one place where an exchange ends."""
        status, headers, content = answer
        protocol = self._protocol
        self.response_complete = True
        if self._timer is not None:
            self._timer.cancel()
        transport = protocol.transport
        if not transport.is_closing():
            if not self.keep_alive or (b"connection", b"close") in headers:
                self.keep_alive = False
                headers = [each for each in headers if each[0] != b"connection"]
                headers.append((b"connection", b"close"))
            headers.append((HEADER, self._request_id))
            parts = [STATUS_LINE[status]]
            for name, value in (*protocol.server_state.default_headers, *headers):
                parts += (name, b": ", value, b"\r\n")
            parts += (b"\r\n", content)
            transport.write(b"".join(parts))
            if not self.keep_alive:
                transport.close()
        try:
            self._count(status)
        except Exception:  # the client has its answer, and the connection goes on
            LOG.exception("request_not_counted")
        protocol.exchanged()

    def _count(self, status: int) -> None:
        metrics = self._protocol.service.metrics
        metrics.requests_open -= 1
        outcome = self._scope.get(OUTCOME, "ok")
        ended = metrics.request(self._endpoint.route, status, outcome)
        ended.ended(time.perf_counter() - self._began)


def protocol_for(service: Service) -> Callable[..., Protocol]:
    """What makes the protocol of each connection, as uvicorn calls it."""
    ids, endpoints = RequestIds(), Endpoints()

    def make(**uvicorn: Any) -> Protocol:
        return Protocol(service, ids, endpoints, **uvicorn)

    return make
