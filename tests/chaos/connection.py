"""A client's connection: sends what it is told to, and keeps every byte that comes back."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

HEAD_END = b"\r\n\r\n"


class Cut(Exception):
    """The connection ended before the answer was complete; the message says how far it had got."""


class Unanswered(Exception):
    """Nothing came for longer than any server may take."""


class Garbled(Exception):
    """What came is not an answer of HTTP/1.1."""


@dataclass(frozen=True)
class ChaosAnswer:
    """What came back.

    Attributes:
        is_whole: whether it has an end; an answer in chunks may be cut.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    is_whole: bool = True

    @property
    def is_chunked(self) -> bool:
        """Whether only its end tells how long it is."""
        return self.headers.get("transfer-encoding") == "chunked"

    @property
    def closes(self) -> bool:
        """Whether the server ends the connection after it."""
        return self.headers.get("connection", "").lower() == "close"

    def told(self) -> str:
        """All that could matter."""
        cut = "" if self.is_whole else f"... {self.body[-2000:]!r}, cut"
        return f"{self.status} {dict(self.headers)} {self.body[:2000]!r}{cut}"


class ChaosConnection(asyncio.Protocol):
    """One connection; made by `connect`."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._ended: str | None = None
        self._news = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self._begun: ChaosAnswer | None = None  # in chunks; its body grows
        self._chunks = bytearray()
        self.answers = 0

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        if not isinstance(transport, asyncio.Transport):
            raise TypeError("bug: not a connection that can be read and written")
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._received += data
        self._news.set()

    def eof_received(self) -> None:
        """See `asyncio.Protocol`."""
        self._ended = self._ended or "it was closed"
        self._news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._ended = self._ended or (f"{type(exc).__name__}" if exc else "it was closed")
        self._news.set()

    # What clients call.

    @property
    def is_open(self) -> bool:
        """Whether more can be asked."""
        return self._ended is None

    @property
    def leftover(self) -> bytes:
        """What came and was not asked for."""
        return bytes(self._received)

    def send(self, data: bytes) -> None:
        """Send; a connection that has ended takes it without a word."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def stop_reading(self) -> None:
        """Leave what comes to the socket, which soon takes no more."""
        if self._transport is not None:
            self._transport.pause_reading()

    def read_on(self) -> None:
        """Read again."""
        if self._transport is not None:
            self._transport.resume_reading()

    async def receive(self, limit_s: float) -> ChaosAnswer:
        """The next answer; one in chunks has what came before the end of the connection.

        Raises:
            Cut: if the connection ends before; what had come of it is dropped.
            Unanswered: if it takes longer than `limit_s`, or each chunk does.
            Garbled: if it is none.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(limit_s) as limit:
                while True:
                    answer = self._next()
                    if answer is None:
                        await self._more()
                        if self._begun is not None:
                            limit.reschedule(loop.time() + limit_s)
                    elif answer.status >= 200:  # else: go on
                        self.answers += 1
                        return answer
        except TimeoutError as error:
            raise Unanswered(f"{len(self._received)} bytes within {limit_s:g} s") from error

    async def until_closed(self, limit_s: float) -> None:
        """Wait until the server has ended it; harmless when it does not."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self._ended is None:
                    self._news.clear()
                    await self._news.wait()

    def half_close(self) -> None:
        """Say that nothing more will be sent."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write_eof()

    def leave(self) -> None:
        """End it at once, with a reset."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """End it in order."""
        if self._transport is not None:
            self._transport.close()

    async def _more(self) -> None:
        if self._ended is not None:
            came = len(self._received)
            self._received.clear()  # it began the answer that was cut: nothing too many
            raise Cut(f"{self._ended} after {came} bytes")
        self._news.clear()
        await self._news.wait()

    def _next(self) -> ChaosAnswer | None:
        """Take one answer from what was received, if it is complete."""
        if self._begun is not None:
            return self._chunked(self._begun)
        end = self._received.find(HEAD_END)
        if end < 0:
            return None
        first, *lines = self._received[:end].decode("latin-1").split("\r\n")
        if not (first.startswith("HTTP/1.1 ") and first[9:12].isdigit()):
            raise Garbled(f"not an HTTP/1.1 response: {first[:80]!r}")
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        status = int(first[9:12])
        start = end + len(HEAD_END)
        begun = ChaosAnswer(status, headers, b"")
        if begun.is_chunked:
            del self._received[:start]
            self._begun = begun
            return self._chunked(begun)
        length = "0" if status < 200 else headers.get("content-length", "")
        if not length.isdigit():
            raise Garbled(f"no Content-Length: {headers}")
        if len(self._received) < start + int(length):
            return None
        body = bytes(self._received[start : start + int(length)])
        del self._received[: start + int(length)]
        return ChaosAnswer(status, headers, body)

    def _chunked(self, begun: ChaosAnswer) -> ChaosAnswer | None:
        """Take the chunks that were received: all of an answer, or what has come of it."""
        is_whole = False
        while not is_whole and (end := self._received.find(b"\r\n")) >= 0:
            try:
                size = int(self._received[:end], 16)
            except ValueError as error:
                raise Garbled(f"no size of a chunk: {bytes(self._received[:end])!r}") from error
            start, behind = end + 2, end + 2 + size
            if len(self._received) < behind + 2:
                break
            self._chunks += self._received[start:behind]
            del self._received[: behind + 2]
            is_whole = size == 0
        if not is_whole:
            if self._ended is None:
                return None
            self._received.clear()  # part of a chunk
        answer = replace(begun, body=bytes(self._chunks), is_whole=is_whole)
        self._begun = None
        self._chunks.clear()
        return answer


async def connect(port: int, host: str = "127.0.0.1") -> ChaosConnection:
    """A new connection to the loopback interface.

    Raises:
        OSError: if nobody listens.
    """
    loop = asyncio.get_running_loop()
    transport, connection = await loop.create_connection(ChaosConnection, host, port)
    transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection
