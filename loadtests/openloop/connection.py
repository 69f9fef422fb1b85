"""One connection of the generator: a request at a time, and what becomes of it."""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from loadtests.openloop.address import words_of
from loadtests.wire import Response, ResponseParser, WireError

BROKEN, UNREADABLE = "connection broken", "unreadable answer"


class Owner(Protocol):
    """What is told of the events of a connection."""

    def made(self, connection: Connection) -> None:
        """It is open."""

    def lost(self, connection: Connection) -> None:
        """It is gone."""

    def answered(self, connection: Connection, index: int, response: Response) -> None:
        """The answer to the request with this number is complete."""

    def fail(self, index: int, fault: str) -> None:
        """The request with this number will have no answer."""


class Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._parser = ResponseParser()
        self._transport: asyncio.Transport | None = None
        self._index: int | None = None
        self.idle_since_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its type
        self._owner.made(self)

    def send(self, index: int, request: bytes) -> None:
        """Write a request; the connection is busy until its answer is there."""
        self._index = index
        if self._transport is not None:
            self._transport.write(request)

    def abort(self) -> None:
        """Close at once."""
        self._index = None
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`; an answer, or a piece of one."""
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
        """See `asyncio.Protocol`; what was out will have no answer."""
        if self._index is not None:
            why = "" if error is None else f": {words_of(error)}"
            self._owner.fail(self._index, f"{BROKEN}{why}")
            self._index = None
        self._owner.lost(self)
