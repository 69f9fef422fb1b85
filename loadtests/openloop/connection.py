"""One connection of the generator, with one request at a time."""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from loadtests.openloop.address import words_of
from loadtests.wire import Response, ResponseParser, WireError

BROKEN, UNREADABLE = "connection broken", "unreadable answer"


class Owner(Protocol):
    """Receives the events of a connection."""

    def made(self, connection: Connection) -> None:
        """Handle an opened connection."""

    def lost(self, connection: Connection) -> None:
        """Handle a lost connection."""

    def answered(self, connection: Connection, index: int, response: Response) -> None:
        """Handle the complete answer to the request with this number."""

    def fail(self, index: int, fault: str) -> None:
        """Handle a request with this number that will get no answer."""


class Connection(asyncio.Protocol):
    """A connection with one request at a time."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._parser = ResponseParser()
        self._transport: asyncio.Transport | None = None
        self._index: int | None = None
        self.idle_since_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it
        self._owner.made(self)

    def send(self, index: int, request: bytes) -> None:
        """Write a request; the connection is busy until its answer is complete."""
        self._index = index
        if self._transport is not None:
            self._transport.write(request)

    def abort(self) -> None:
        """Close immediately."""
        self._index = None
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`; the data is an answer or a piece of one."""
        index = self._index
        if index is None:
            self.abort()  # an answer without a request
            return
        try:
            response = self._parser.feed(data)
        except WireError as error:
            self._owner.fail(index, f"{UNREADABLE}: {error}")
            self.abort()
            return
        if response is not None:
            self._index = None
            self._owner.answered(self, index, response)

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.Protocol`; a pending request will get no answer."""
        if self._index is not None:
            why = "" if error is None else f": {words_of(error)}"
            self._owner.fail(self._index, f"{BROKEN}{why}")
            self._index = None
        self._owner.lost(self)
