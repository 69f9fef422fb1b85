"""One connection of our server: uvicorn's protocol, with a short way for predictions.

A prediction that comes as most do is answered without a task, a scope and two middlewares, all of
which cost more than to parse its body: see `exchange.py`. What is out of the ordinary (pipelined,
`Expect`, HTTP/1.0, an access log, a slow reader), and every other path, goes uvicorn's own way to
the ASGI application, which answers predictions just the same: see `predict.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from app.api.endpoints import Endpoints
from app.api.exchange import Exchange
from app.api.request_ids import RequestIds
from app.api.service import Service


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


def protocol_for(service: Service) -> Callable[..., Protocol]:
    """What makes the protocol of each connection, as uvicorn calls it."""
    ids, endpoints = RequestIds(), Endpoints()

    def make(**uvicorn: Any) -> Protocol:
        return Protocol(service, ids, endpoints, **uvicorn)

    return make
