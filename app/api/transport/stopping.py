"""What a connection still answers when its server stops, and when it closes.

What the client has sent is answered, up to the first answer whose head is not written yet: it says
that it is the last, and requests behind it are ignored. The connection closes behind that answer;
at once if there is nothing to answer.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from app.api.transport.reading import Reader
from app.api.transport.writing import Writer

AGAIN_S = 0.005  # until another look; the loop reads what has arrived in between


class LastRequest(Protocol):
    """A request that may be the last of its connection."""

    @property
    def response_complete(self) -> bool:
        """Whether the whole answer has been written."""
        raise NotImplementedError

    def be_last(self) -> None:
        """Close the connection behind the answer, if its head can still say so."""


class ClosingConnection(Protocol):
    """What a stop needs from its connection."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    reader: Reader
    writer: Writer

    @property
    def is_answered(self) -> bool:
        """Whether all requests that were read are answered."""
        raise NotImplementedError

    def close_behind_answer(self) -> None:
        """Close, but let the client read what was written."""


class Stop:
    """Closes a connection when what its client has sent is answered.

    Args:
        connection: of a server that stops.
    """

    def __init__(self, connection: ClosingConnection) -> None:
        self._connection = connection
        self._has_answered = False  # since the stop, so that the client may be about to read
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, request: LastRequest | None) -> None:
        """Let the current request be the last if it can, and close if nothing is unanswered."""
        if request is not None and not request.response_complete:
            request.be_last()
        self._look()

    def answered(self) -> None:
        """Close behind an answer, unless the client has sent more."""
        self._has_answered = True
        self._look()

    def lost(self) -> None:
        """The connection is closed."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        """Close, or look again once the reader has had its turn."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        connection = self._connection
        if not (connection.writer.can_answer and connection.is_answered):
            return  # `answered` looks again
        if connection.reader.ahead is not None:
            self._timer = connection.loop.call_later(AGAIN_S, self._look)
        elif self._has_answered:
            connection.close_behind_answer()
        else:
            connection.transport.close()
