"""The server's end of the connection to a handler's process: frames, and how fast they flow."""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

import orjson

from torchlane.handlers.frames import (
    FROM_HANDLER,
    FROM_HANDLER_BYTES,
    Decoder,
    Frame,
    MalformedFrame,
    head,
)

MAX_UNREAD_BYTES = 256 << 20  # of frames that the process does not read
COPIED_BYTES = 64 << 10  # a body up to this is sent together with its head


class Owner(Protocol):
    """What the frames are for."""

    def received(self, frame: Frame) -> None:
        """A frame has come.

        Raises:
            MalformedFrame: it is not what the process may send now.
        """

    def end(self, cause: str, reason: str) -> None:
        """The process breaks the protocol, and must end; see `HandlerMetrics.restarted`."""

    def resumed(self) -> None:
        """The process reads again."""

    def lost(self) -> None:
        """The connection has ended."""

    @property
    def takes_frames(self) -> bool:
        """Whether frames that come are still of use."""

    @property
    def is_behind(self) -> bool:
        """Whether no further frames should be read for now."""


class Connection(asyncio.Protocol):
    """Reads and writes frames.

    Args:
        owner: is told what happens.

    Attributes:
        is_full: whether the process reads more slowly than the server writes.
    """

    def __init__(self, owner: Owner) -> None:
        self.is_full = False
        self._owner = owner
        self._decoder = Decoder(FROM_HANDLER, FROM_HANDLER_BYTES, orjson.loads)
        self._transport: asyncio.Transport | None = None

    @property
    def is_open(self) -> bool:
        """Whether frames that are sent may still arrive."""
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        if not self._owner.takes_frames:
            return
        try:
            for frame in self._decoder.feed(data):
                self._owner.received(frame)
        except MalformedFrame as error:
            self._owner.end("frames", f"it sent {error}")

    def pause_writing(self) -> None:
        self.is_full = True
        self.pace()

    def resume_writing(self) -> None:
        self.is_full = False
        self.pace()
        self._owner.resumed()

    def eof_received(self) -> None:
        """See `asyncio.Protocol`."""

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._owner.lost()

    def send(self, kind: int, number: int, meta: object = None, body: bytes = b"") -> None:
        """Send a frame; harmless if the connection has ended."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        start = head(kind, number, orjson.dumps(meta) if meta else b"", len(body))
        if len(body) <= COPIED_BYTES:
            transport.write(start + body)
        else:
            transport.writelines((start, body))
        if self.is_full and transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            self._owner.end("stuck", "it does not read what the server sends")

    def pace(self) -> None:
        """Read on, unless the process causes more work than it takes the results of."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self.is_full or self._owner.is_behind:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def abort(self) -> None:
        """End the connection; harmless if it has ended."""
        if self._transport is not None:
            self._transport.abort()
