"""One connection of the generator, with one request at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, cast

import httptools

from loadtests.openloop.address import words_of

BROKEN, UNREADABLE = "connection broken", "unreadable answer"
MAX_BODY_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Response:
    """One answer, with header names in lower case.

    Attributes:
        closes: whether the server closes the connection after it.
    """

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict, compare=False)
    closes: bool = field(default=False, compare=False)


class Owner(Protocol):
    """Receives the events of a connection; requests have numbers."""

    def handle_open(self, connection: Connection) -> None:
        """Handle an opened connection."""

    def handle_loss(self, connection: Connection) -> None:
        """Handle a lost connection."""

    def handle_answer(self, connection: Connection, index: int, response: Response) -> None:
        """Handle the complete answer to a request."""

    def fail(self, index: int, fault: str) -> None:
        """Handle a request that will get no answer."""


class Connection(asyncio.Protocol):
    """Parses answers with httptools, which calls the methods that begin with `on_`."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._index: int | None = None
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._complete: list[Response] = []  # by the data that is parsed now: one is right
        self.idle_since_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it
        self._owner.handle_open(self)

    def send(self, index: int, request: bytes) -> None:
        """Write a request; the connection is busy until its answer is complete."""
        self._index = index
        if self._transport is not None:
            self._transport.write(request)

    def abort(self) -> None:
        self._index = None
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        index = self._index
        if index is None:
            self.abort()  # an answer without a request
            return
        try:
            self._parser.feed_data(data)
            if len(self._complete) > 1:
                raise ValueError("more than one answer to one request")
        except (httptools.HttpParserError, ValueError) as error:
            self._owner.fail(index, f"{UNREADABLE}: {error.__context__ or error}")
            self.abort()
            return
        if self._complete:
            self._index = None
            self._owner.handle_answer(self, index, self._complete.pop())

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)
        self._body_bytes += len(body)
        if self._body_bytes > MAX_BODY_BYTES:
            raise ValueError(f"an answer of more than {MAX_BODY_BYTES >> 20} MiB")

    def on_message_complete(self) -> None:
        status, closes = self._parser.get_status_code(), not self._parser.should_keep_alive()
        self._complete.append(Response(status, b"".join(self._body), self._headers, closes))
        self._headers, self._body, self._body_bytes = {}, [], 0

    def connection_lost(self, error: Exception | None) -> None:
        if self._index is not None:
            why = "" if error is None else f": {words_of(error)}"
            self._owner.fail(self._index, f"{BROKEN}{why}")
            self._index = None
        self._owner.handle_loss(self)
