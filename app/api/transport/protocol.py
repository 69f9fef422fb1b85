"""A connection of the server: uvicorn's protocol, with a fast path for predictions.

An ordinary prediction is answered without a task, a scope or middleware, which all cost more than
parsing its body: see `exchange.py`. Unusual requests (`Expect`, HTTP/1.0, an access log), and all
other paths, take uvicorn's path to the ASGI application, which answers predictions in the same way:
see `asgi_predict.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.api.endpoints import Endpoint
from app.api.request_ids import RequestIds
from app.api.service import Service
from app.api.transport.connection_limits import BETWEEN, LimitedProtocol
from app.api.transport.exchange import Exchange
from app.api.transport.known_head import KnownHead, known_head
from app.errors import TorchlaneError

# After this many parsed heads in a row, the client probably never repeats a head; from then on
# every 64th head is remembered.
MAX_NEW_HEADS, EVERY = 4, 64


class Protocol(LimitedProtocol):
    """One connection; see `uvicorn`'s class and `asyncio.Protocol`.

    Args:
        service: engine, models and limits.
        ids: request ids of the process.
        uvicorn: arguments of uvicorn's own protocol.
    """

    def __init__(self, service: Service, ids: RequestIds, **uvicorn: Any) -> None:
        super().__init__(service, ids, **uvicorn)
        self._endpoints = service.dialects.endpoints
        self._exchange: Exchange | None = None
        self._known: KnownHead | None = None
        self._new_heads = 0  # since the last known head
        # The last request that took the fast path with a parsed head.
        self._chosen: tuple[Endpoint, list[tuple[bytes, bytes]]] | None = None

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        known = self._known
        if known is not None and self.is_free:
            body = known.body_of(data)
            if body is not None:
                self._answer(known, body)
                return
        starts, before = self._reads == BETWEEN, self._chosen
        super().data_received(data)
        chosen = self._chosen
        if not starts or chosen is None or chosen is before or self._reads != BETWEEN:
            return
        self._new_heads += 1
        if self._new_heads <= MAX_NEW_HEADS or self._new_heads % EVERY == 0:
            self._known = known_head(data, self.url, chosen[1], chosen[0]) or known

    def _answer(self, known: KnownHead, body: bytes) -> None:
        """Answer a request with a known head."""
        self._new_heads = 0
        if self.fields is not known.fields:
            self.url, self.headers, self.fields = known.url, known.headers, known.fields
        self.on_known_head()
        exchange = self._exchange = Exchange(self, known.endpoint)
        self.occupy(exchange)
        exchange.open()
        exchange.take(body)
        exchange.begin()

    def on_body_pending(self) -> None:
        """Notify the exchange that its body is incomplete."""
        if self._exchange is not None:
            self._exchange.on_body_pending()

    def choose_path(self) -> None:
        """Choose the fast path or uvicorn's path, once the head is complete."""
        if not self.can_answer:
            return
        on_fast_path = self.is_plain and self.is_common_post()
        endpoint = self._endpoints.at(self.url) if on_fast_path else None
        if endpoint is not None:
            self._chosen = endpoint, self.headers
            exchange = self._exchange = Exchange(self, endpoint)
            self.occupy(exchange)
            exchange.open()
            return
        super().choose_path()

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        if self._exchange is not None:
            self.on_body_bytes(len(body))
            self._exchange.take(body)
        else:
            super().on_body(body)

    def body_ends(self) -> None:
        """The body is complete."""
        if self._exchange is not None:
            self._exchange.begin()
        else:
            super().body_ends()

    def on_response_complete(self) -> None:
        """An answer has been written."""
        self.occupant_ended()
        if self.can_answer:
            self.resume_reading()
            self.answered()

    def exchanged(self) -> None:
        """An answer has been written on the fast path."""
        self._exchange = None
        self.occupant_ended()
        self.answered()

    def reject_rest(self, error: TorchlaneError) -> bool:
        """Reject the request that is being read, if it is on the fast path."""
        if self._exchange is None:
            return False
        self._exchange.reject(error)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        if self._exchange is not None:
            self._exchange.disconnected()
        super().connection_lost(exc)

    def give_up(self) -> None:
        """Answer a request whose body is incomplete, because the server stops now."""
        if self._exchange is not None:
            self._exchange.give_up()


def protocol_for(service: Service) -> Callable[..., Protocol]:
    """The factory of each connection's protocol, as uvicorn calls it."""
    ids = RequestIds()

    def make(**uvicorn: Any) -> Protocol:
        return Protocol(service, ids, **uvicorn)

    return make
