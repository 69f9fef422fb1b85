"""One connection of our server: uvicorn's protocol, with a fast path for predictions.

A prediction that comes as most do is answered without a task, a scope and two middlewares, all of
which cost more than to parse its body: see `exchange.py`. What is out of the ordinary (pipelined,
`Expect`, HTTP/1.0, an access log, a slow reader), and every other path, goes uvicorn's own way to
the ASGI application, which answers predictions just the same: see `asgi_predict.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.api.endpoints import Endpoints
from app.api.request_ids import RequestIds
from app.api.service import Service
from app.api.transport.connection_limits import LimitedProtocol
from app.api.transport.exchange import Exchange
from app.errors import CallerError


class Protocol(LimitedProtocol):
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
        super().__init__(service, ids, **uvicorn)
        self._endpoints = endpoints
        self._exchange: Exchange | None = None

    def body_goes_on(self) -> None:
        """What had come was read, and a body is still to come."""
        if self._exchange is not None:
            self._exchange.hurry()

    def choose_way(self) -> None:
        """The head is complete: the fast path, or uvicorn's."""
        if self.transport.is_closing():  # behind an answer that was the last: nobody could be told
            return
        on_fast_path = self.is_plain and self.is_common_post()
        endpoint = self._endpoints.at(self.url) if on_fast_path else None
        if endpoint is not None:
            exchange = self._exchange = Exchange(self, endpoint)
            self.occupy(exchange)
            exchange.open()
            return
        super().choose_way()

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        if self._exchange is not None and self.is_occupied_by(self._exchange):
            self._bytes_without_body = 0
            self._exchange.take(body)
        else:
            super().on_body(body)

    def body_ends(self) -> None:
        """The body is complete."""
        if self._exchange is not None and self.is_occupied_by(self._exchange):
            self._exchange.begin()
        else:
            super().body_ends()

    def on_response_complete(self) -> None:
        """An answer has been written."""
        if not self.pipelined:
            self.answered()
        super().on_response_complete()

    def exchanged(self) -> None:
        """An answer has been written on the fast path."""
        self._exchange = None
        if self.pipelined:
            self.on_response_complete()
            return
        self.occupant_ended()
        self.answered()

    def refuse_the_rest(self, error: CallerError) -> bool:
        """Refuse the request that is being read, if it came by the fast path."""
        if self._exchange is None or not self.is_occupied_by(self._exchange):
            return False
        self._exchange.refuse(error)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        if self._exchange is not None:
            self._exchange.disconnected()
        super().connection_lost(exc)

    def give_up(self) -> None:
        """The server stops now: answer what waits for the rest of its body."""
        if self._exchange is not None:
            self._exchange.give_up()


def protocol_for(service: Service) -> Callable[..., Protocol]:
    """What makes the protocol of each connection, as uvicorn calls it."""
    ids, endpoints = RequestIds(), Endpoints()

    def make(**uvicorn: Any) -> Protocol:
        return Protocol(service, ids, endpoints, **uvicorn)

    return make
