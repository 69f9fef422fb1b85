"""A connection of the server: it reads requests, and has each answered in one of two ways.

An ordinary prediction is answered without a task, a scope or middleware, which all cost more than
parsing its body: see `exchange.py`. Unusual requests (`Expect`, HTTP/1.0), and all other paths, go
to the ASGI application (`cycle.py`), which answers predictions in the same way: see
`asgi_predict.py`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any

from app.api.endpoints import Endpoint
from app.api.errors import FORM, REQUEST_ID, RawAnswer, error_answer
from app.api.idle import FIRST_S
from app.api.request_ids import HEADER, RequestIds
from app.api.service import Service
from app.api.transport.cycle import Cycle
from app.api.transport.exchange import Exchange
from app.api.transport.host import Host
from app.api.transport.known_head import KnownHead, known_head
from app.api.transport.parsing import (
    BETWEEN,
    BODY,
    HEAD,
    NOTHING,
    SLOW_HEAD,
    RequestParser,
)
from app.api.transport.reading import Reader
from app.api.transport.stopping import AGAIN_S, Stop
from app.api.transport.writing import ServerState, Writer
from app.errors import HeadLate, TorchlaneError
from app.telemetry.tracing import RequestTrace

# After this many parsed heads in a row, the client probably never repeats a head; from then on
# every 64th head is remembered.
MAX_NEW_HEADS, EVERY = 4, 64
IDLE = "idle"


class Connection(asyncio.Protocol):
    """One connection; see `asyncio.Protocol`.

    Args:
        service: engine, models and limits.
        ids: request ids of the process.
        host: the server, in an object of the connection's own.

    Attributes:
        transport, reader, writer: set once it is connected.
        parser: has the last head that was parsed.
        request: the last request with a complete head; None before the first.
    """

    transport: asyncio.Transport
    reader: Reader
    writer: Writer

    def __init__(self, service: Service, ids: RequestIds, host: Host) -> None:
        self.service = service
        self.ids = ids
        self.host = host
        self.loop = asyncio.get_running_loop()
        self.request: Exchange | Cycle | None = None
        self.parser = RequestParser(self)
        self._endpoints = service.dialects.endpoints
        self._known: KnownHead | None = None
        self._new_heads = 0  # since the last known head
        # The last request that took the fast path with a parsed head.
        self._chosen: tuple[Endpoint, list[tuple[bytes, bytes]]] | None = None
        # A timer for each request would cost 2 us. One timer keeps running and checks whether the
        # client is overdue; None while the server is working.
        self._due: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._overdue: float | None = None  # the `_due` that has passed
        self._stop: Stop | None = None  # once the server stops

    # What asyncio and the server call.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        state = self.host.state
        state.connections.add(self)
        self.transport = transport
        self.reader = Reader(self, self.service, transport)
        self.writer = Writer(self.service, state, transport)
        self.host.scope |= {
            "server": _address(transport, "sockname"),
            "client": _address(transport, "peername"),
            "scheme": "https" if transport.get_extra_info("sslcontext") else "http",
        }
        self.service.idle.make_room(state.connections, self.loop)
        self._wait(self.service.limits.head_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self.host.state.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._stop is not None:
            self._stop.lost()
        self._stop = None  # otherwise both would wait for the garbage collector
        self.reader.lost()
        self.writer.lost()
        self.parser.lost()
        if self.request is not None and not self.request.response_complete:
            self.request.disconnected()
        self.request = None

    def data_received(self, data: bytes) -> None:
        known = self._known
        if known is not None and self._is_free and not self._may_stream(known.endpoint):
            body = known.body_of(data)
            if body is not None:
                self._answer(known, body)
                return
        parser, before = self.parser, self._chosen
        starts = parser.reads == BETWEEN
        self.reader.received(data)
        chosen = self._chosen
        if not starts or chosen is None or chosen is before or parser.reads != BETWEEN:
            return
        self._new_heads += 1
        if self._new_heads <= MAX_NEW_HEADS or self._new_heads % EVERY == 0:
            self._known = known_head(data, parser.url, chosen[1], chosen[0]) or known

    def pause_writing(self) -> None:
        self.writer.pause()

    def resume_writing(self) -> None:
        self.writer.resume()
        self.reader.go_on()

    def shutdown(self) -> None:
        """Close an idle connection, and others behind the next answer, because the server stops."""
        if self.writer.can_answer:
            self._known = None  # a request with a known head would not become the last
            self._stop = self._stop or Stop(self)
            self._stop.begin(self.request)

    def give_up(self) -> None:
        """Answer a request whose body is incomplete, because the server stops now."""
        if self.request is not None:
            self.request.give_up()

    # What `IdleLimit` asks.

    @property
    def is_closing(self) -> bool:
        return self.transport.is_closing()

    @property
    def idle_since(self) -> float | None:
        """Since when it has waited for the first byte of a request; see `IdleConnection`.

        None also if the client has not read the last answer, so that it can.
        """
        if self._due is None or not self._is_free or self.transport.get_write_buffer_size():
            return None
        if self.request is not None:
            return self._due - self.host.keep_alive_s
        since = self._due - self.service.limits.head_timeout_s
        return since if self.loop.time() - since >= FIRST_S else None

    def close_idle(self) -> None:
        """Close at once, because too many connections are open."""
        self.service.metrics.connections_cut.labels(IDLE).inc()
        self.transport.close()

    # What its reader calls.

    @property
    def is_answered(self) -> bool:
        """Whether all requests that were read are answered."""
        return self.request is None or self.request.response_complete

    @property
    def can_parse(self) -> bool:
        reads = self.parser.reads
        if reads == BETWEEN:
            return self.is_answered and not self.writer.is_paused
        return reads != NOTHING

    def on_parsed(self) -> None:
        """Limit the time for the rest of a request."""
        parser = self.parser
        if parser.reads == BETWEEN:  # the usual case
            return
        if parser.reads == BODY and self.request is not None:
            self.request.on_body_pending()
        elif parser.reads == HEAD and self._due is not None:
            parser.reads = SLOW_HEAD
            self._wait(self.service.limits.head_timeout_s)

    def cut(self, error: TorchlaneError) -> None:
        """Stop reading, because the start of the next request is now unknown."""
        reads = self.parser.reads
        if reads == NOTHING or self.transport.is_closing():
            return
        self.parser.reads = NOTHING
        self.service.metrics.connections_cut.labels(error.code).inc()
        self.reader.pause()
        self.reader.drop()
        if self.request is not None and not self.request.response_complete:
            self.request.reject(error)
            return
        if reads != BODY:  # the rest of a body whose request is answered
            request_id = self.ids.of({})
            self._log_cut(error, request_id, self.send_error(error, request_id))
        self.close_behind_answer()

    # What its parser calls.

    def on_head(self) -> None:
        """Start to answer a request, on the fast path or by the application."""
        self._due = None
        if not self.writer.can_answer:
            return
        head = self.parser
        endpoint = None
        if head.keeps_alive and not head.expects and head.method == b"POST":
            endpoint = self._endpoints.at(head.url)
            if endpoint is not None and self._may_stream(endpoint):
                endpoint = None  # the fast path writes whole answers
        if endpoint is not None:
            self._chosen = endpoint, head.headers
            exchange = self.request = Exchange(self, head, endpoint)
            if self._stop is not None:
                exchange.be_last()
            exchange.open(head.fields)
        else:
            cycle = self.request = Cycle(self, head)
            if self._stop is not None:
                cycle.be_last()
            cycle.start()

    def _may_stream(self, endpoint: Endpoint) -> bool:
        """Whether the endpoint may be that of a handler that yields."""
        loaded = self.service.loaded
        return loaded.has_streams and loaded.is_stream(endpoint.name, endpoint.version)

    def on_body(self, body: bytes) -> None:
        if self.request is not None:
            self.request.take(body)

    def on_request_end(self) -> None:
        if self._due is not None:  # already answered
            self._wait(self.host.keep_alive_s)
        if self.request is not None:
            self.request.on_body_end()

    # What a request calls.

    def answered(self) -> None:
        """Wait for the next request, or for the rest of a body that is no longer wanted."""
        self.host.state.total_requests += 1
        if not self.writer.can_answer:
            return
        if self.reader.is_paused:  # the application has left a body unread
            self.reader.resume()
        if self.parser.reads == BETWEEN:
            self._wait(self.host.keep_alive_s)
        elif self.parser.reads == BODY:
            self._wait(self.service.limits.timeout_s)
        else:
            self._wait(self.service.limits.head_timeout_s)
        if self.reader.ahead is not None:
            self.reader.go_on()
        if self._stop is not None:
            self._stop.answered()

    def close_behind_answer(self) -> None:
        """Close, but let the client read what was written."""
        if self.writer.can_answer:
            self.parser.reads = NOTHING
            self.writer.end()
            self.reader.drop()
            self.reader.resume()  # to notice that the client closes

    def send_error(self, error: TorchlaneError, request_id: bytes) -> RawAnswer:
        """Answer a request that was not read to its end; returns the answer."""
        path = self.parser.url.partition(b"?")[0].decode("latin-1")  # the part that has been read
        form = self.service.dialects.of(path).errors
        scope = {REQUEST_ID: request_id.decode("ascii"), FORM: form}
        status, headers, content = error_answer(scope, error)
        headers.append((HEADER, request_id))
        self.writer.write_answer(status, headers, content)
        return status, headers, content

    def _log_cut(self, error: TorchlaneError, request_id: bytes, answer: RawAnswer) -> None:
        """Log bytes that form no request, because the head is malformed or incomplete."""
        status, _, content = answer
        access_log = self.service.access_log
        if access_log.wants(status, 0.0):
            now = time.perf_counter()
            record = RequestTrace("HTTP", "", "", request_id, now)
            record.bytes_out = len(content)
            record.end(now, status, error.code)
            access_log.write(record, {})

    @property
    def _is_free(self) -> bool:
        """Whether a request could be answered at once, if none has been partly read."""
        return (
            self.parser.reads == BETWEEN
            and self.is_answered
            and self.reader.ahead is None
            and not self.writer.is_paused
            and not self.transport.is_closing()
        )

    def _answer(self, known: KnownHead, body: bytes) -> None:
        """Answer a request with a known head."""
        self._new_heads = 0
        self._due = None
        self.parser.bytes_without_body = 0
        exchange = self.request = Exchange(self, known, known.endpoint)
        exchange.open(known.fields)
        exchange.take(body)
        exchange.on_body_end()

    def _wait(self, most_s: float) -> None:
        """Give the client this much time from now on."""
        due = self._due = self.loop.time() + most_s
        if self._timer_at > due:
            self._set_timer(due)

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.writer.can_answer:
            self._timer_at = at
            self._timer = self.loop.call_at(at, self._look)

    def _look(self) -> None:
        self._timer = None
        now = self.loop.time()
        if self._due is None or self.reader.ahead is not None:  # the server's turn
            self._set_timer(now + self.host.keep_alive_s)
        elif self._due > now:
            self._set_timer(self._due)
        elif self._due != self._overdue:  # uvloop runs timers before it reads what has arrived
            self._overdue = self._due
            self._set_timer(now + AGAIN_S)
        elif self.parser.reads in (HEAD, SLOW_HEAD):
            limit_s = self.service.limits.head_timeout_s
            self.cut(HeadLate(f"the head of a request must arrive within {limit_s:g} s"))
        else:
            self.close_behind_answer()


def _address(transport: asyncio.Transport, name: str) -> tuple[str, int | None] | None:
    """An end of the connection, as in a scope; None if it has no name."""
    address = transport.get_extra_info(name)
    if isinstance(address, tuple):
        return str(address[0]), int(address[1])
    return (address, None) if isinstance(address, str) and address else None


def connections_for(service: Service) -> Callable[..., Connection]:
    """The factory of connections, for `uvicorn.Config(http=...)`.

    Of the configuration it uses the application, `root_path` and `timeout_keep_alive`. The service
    has limits of its own.
    """
    ids = RequestIds()

    # `Any`: uvicorn declares seconds as whole, and compiled code would insist on it.
    def make(
        config: Any, server_state: ServerState, app_state: dict[str, Any], **_: Any
    ) -> Connection:
        keep_alive_s = float(config.timeout_keep_alive)
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "root_path": config.root_path,
            "state": app_state,
        }
        host = Host(config.loaded_app, scope, server_state, keep_alive_s)
        return Connection(service, ids, host)

    return make
