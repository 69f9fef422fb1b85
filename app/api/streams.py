"""Answers that are written as they come: items as server-sent events, or as lines of JSON."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable

from app.api.errors import VARY
from app.codecs.base import JSON
from app.errors import TorchlaneError

SSE, NDJSON = "text/event-stream", "application/x-ndjson"
OFFERS = (SSE, NDJSON, JSON)  # JSON: all items in one list
Headers = list[tuple[bytes, bytes]]


class Stream:
    """Items on their way to a caller.

    Args:
        media_type: `SSE` or `NDJSON`.
        count: called with the bytes of all items that are not written; raises `Overloaded` if these
            are too many.
        taken: called when an item was written, so that another one may come.
        leave: called if the caller does not want the rest.

    Attributes:
        is_left: whether the caller has left before the end.
    """

    def __init__(
        self,
        media_type: str,
        count: Callable[[int], None],
        taken: Callable[[], None],
        leave: Callable[[], None],
    ) -> None:
        self.is_left = False
        self._is_sse = media_type == SSE
        self._media_type = media_type
        self._count = count
        self._taken = taken
        self._leave = leave
        self._items: deque[bytes] = deque()
        self._bytes = 0  # of items that are not written
        self._error: TorchlaneError | None = None
        self._has_ended = False
        self._news = asyncio.Event()

    @property
    def headers(self) -> Headers:
        """Of the answer."""
        return [
            (b"content-type", self._media_type.encode()),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),  # nginx would otherwise collect the items
            VARY,
        ]

    def add(self, item: bytes) -> None:
        """Add an item, as JSON.

        Raises:
            Overloaded: if all answers would take too many bytes.
        """
        self._count(self._bytes + len(item))
        self._bytes += len(item)
        self._items.append(item)
        self._news.set()

    def end(self, error: TorchlaneError | None = None) -> None:
        """Say that no more items come, because of an error or not; harmless if it was said."""
        if not self._has_ended:
            self._has_ended, self._error = True, error
            self._news.set()

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The body, an item at a time; each counts as taken when the next one is asked for.

        Raises:
            TorchlaneError: why there are no more; `failure` is what the caller gets to read.
        """
        while not self.is_left:
            while self._items and not self.is_left:
                item = self._items.popleft()
                yield self._written(item, b"")
                self._bytes -= len(item)
                self._count(self._bytes)
                self._taken()
            if self._has_ended:
                break
            self._news.clear()
            await self._news.wait()
        if self._error is not None and not self.is_left:
            raise self._error

    def failure(self, told: bytes) -> bytes:
        """The end of the body of a stream that failed.

        Args:
            told: the error, as JSON.
        """
        return self._written(told, b"event: error\n")

    def leave(self) -> None:
        """The caller has left: end."""
        self.is_left = True
        self._leave()
        self.end()

    def _written(self, item: bytes, event: bytes) -> bytes:
        """An item, or the end of a stream that failed, as a part of the body."""
        return b"%bdata: %b\n\n" % (event, item) if self._is_sse else item + b"\n"


class PlainStream(Stream):
    """Items as they came, for a transport that frames them itself."""

    def _written(self, item: bytes, event: bytes) -> bytes:
        return item
