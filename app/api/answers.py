"""Large answers: counted until they are sent, and encoded in slices between other work.

Encoding an answer of a hundred megabytes takes most of a second, and holds the GIL, so a thread
would stall the event loop as well. Instead, each turn of the loop encodes for a millisecond. Work
that releases the GIL, such as compression, follows in a thread.
"""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Callable, Generator
from typing import TypeAlias

from app.api.errors import RawAnswer
from app.api.memory import FREE_BYTES, Memory
from app.api.turns import Turns

LARGE_BYTES = FREE_BYTES  # of arrays, or of an encoded answer: smaller ones are written at once
SLICE_S = 0.001
WRITE_BYTES = 256 << 10  # copied at once: takes about 0.1 ms
UNREAD = "answer_unread"  # the code of a connection or call that ends because of it
Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]
Piece: TypeAlias = bytes | memoryview
Pieces: TypeAlias = Generator[Piece, None, Headers]  # the parts of a body, then its headers
Encoded: TypeAlias = tuple[Headers, bytes]
# Gets what was encoded, and what to call with the result; returns what cancels the work.
Thread: TypeAlias = Callable[
    [Headers, bytes, Callable[[Encoded | Exception], None]], Callable[[], None]
]


class AnswerMemory(Memory):
    """Bounds answers, from before they are encoded until the caller's socket has taken them.

    Args:
        limit: bytes for all answers in total.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(limit, "answers that are not sent yet", "ask for less and read it faster")


class LargeAnswer:
    """An answer that is encoded in slices.

    Args:
        turns: shares the time with other work.
        count: called with the bytes that the answer takes; raises `Overloaded` if these are too
            many.
        pieces: the parts of its body, each quick to make.
        finish: makes the answer from its headers and body.
        thread: changes them before that, in a thread, on which it calls back on the event loop.
    """

    __slots__ = ("_buffer", "_count", "_done", "_finish", "_off_loop", "_pieces", "_stop", "_turns")

    def __init__(
        self,
        turns: Turns,
        count: Callable[[int], None],
        pieces: Pieces,
        finish: Callable[[Headers, bytes], RawAnswer],
        thread: Thread | None = None,
    ) -> None:
        self._turns = turns
        self._count = count
        self._pieces: Pieces | None = pieces
        self._finish = finish
        self._off_loop = thread
        self._stop: Callable[[], None] | None = None
        self._buffer = io.BytesIO()
        self._done: Callable[[RawAnswer | Exception], None] | None = None

    def start(self, done: Callable[[RawAnswer | Exception], None]) -> None:
        """Encode; then call `done`, which must not raise, with the answer or an error."""
        self._done = done
        self._turns.wait(self)

    async def encoded(self) -> RawAnswer:
        """The answer.

        Raises:
            Exception: whatever makes it impossible.
        """
        ended: asyncio.Future[RawAnswer | Exception] = asyncio.get_running_loop().create_future()
        self.start(lambda result: None if ended.done() else ended.set_result(result))
        try:
            result = await ended
        finally:
            self.cancel()
        if isinstance(result, Exception):
            raise result
        return result

    def cancel(self) -> None:
        """Drop the answer, because its caller has left; harmless if it is encoded."""
        self._done = self._pieces = None
        self._buffer = io.BytesIO()
        stop, self._stop = self._stop, None
        if stop is not None:
            stop()

    def take_turn(self) -> float:
        """Encode for a while; see `Participant`."""
        began = time.perf_counter()
        pieces = self._pieces
        if pieces is None:
            return 0.0
        try:
            headers = self._encode(pieces)
            if headers is None:
                self._turns.wait(self)
                return time.perf_counter() - began
            content = self._buffer.getvalue()  # no copy, because it has no spare bytes
            self._pieces, self._buffer = None, io.BytesIO()
            if self._off_loop is None:
                self._end((headers, content))
            else:
                self._stop = self._off_loop(headers, content, self._end)
        except Exception as error:
            self._end(error)
        return time.perf_counter() - began

    def _end(self, encoded: Encoded | Exception) -> None:
        done = self._done
        self._stop = None
        self.cancel()
        if done is None:
            return
        try:
            result = encoded if isinstance(encoded, Exception) else self._finish(*encoded)
        except Exception as error:
            result = error
        done(result)

    def _encode(self, pieces: Pieces) -> Headers | None:
        """Encode a slice; returns the headers at the end."""
        buffer = self._buffer
        until = time.perf_counter() + SLICE_S
        try:
            while time.perf_counter() < until:
                buffer.write(next(pieces))
        except StopIteration as stop:
            headers: Headers = stop.value
            return headers
        self._count(buffer.tell())
        return None


def in_parts(octets: memoryview) -> Generator[memoryview, None, None]:
    """Bytes in parts that are quick to copy."""
    octets = octets.cast("B")
    for at in range(0, len(octets), WRITE_BYTES):
        yield octets[at : at + WRITE_BYTES]
