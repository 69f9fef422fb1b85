"""How a connection reads: one request at a time, in fair turns with all other connections.

A request is parsed once the one before it is answered. Each read may bring one request, which is
parsed at once. What the client sent ahead of its answers waits, and takes turns.
"""

from __future__ import annotations

import re
import time
from typing import Any

from app.api.service import Service
from app.api.transport.closing import ClosingConnection
from app.errors import Overloaded

PIECE_BYTES = 4096  # parsed at once, except bodies of known length; chunks of a byte take 1 ms
AHEAD_BYTES = 64 << 10  # received and not parsed; beyond this the connection reads no more
READ_S = 0.0001  # about what a full read costs
TASK_S = 0.0002  # about what a request costs that is not answered while it is parsed
HEAD_END = re.compile(rb"\A\r?\n|\n\r?\n")  # a read may end within it


class ReadingConnection(ClosingConnection):
    """A connection that parses what it received; see uvicorn's class and `asyncio.Protocol`.

    Args:
        service: has the turns, and the memory that also counts incomplete bodies.
        uvicorn: arguments of uvicorn's own protocol.
    """

    def __init__(self, service: Service, **uvicorn: Any) -> None:
        super().__init__(service, **uvicorn)
        self._ahead: memoryview | None = None  # empty: only the next read waits for its turn
        self._ahead_counted = 0
        self._waits_for_turn = False
        self._body_left = 0  # missing from a body of known length, otherwise 0 or less

    @property
    def can_keep(self) -> bool:
        """Whether what the client sends can still matter."""
        raise NotImplementedError

    @property
    def can_parse(self) -> bool:
        """Whether to parse more now; a request waits until the one before it is answered."""
        raise NotImplementedError

    def parse(self, piece: bytes | memoryview) -> None:
        """Parse the next bytes, which contain the end of at most one request."""
        raise NotImplementedError

    def on_parsed(self) -> None:
        """Called when nothing more is parsed for now."""
        raise NotImplementedError

    def on_too_much_ahead(self, error: Overloaded) -> None:
        """Answer what was parsed, then close: what was sent ahead is dropped."""
        raise NotImplementedError

    def data_received(self, data: bytes) -> None:
        """Parse one request, unless earlier ones wait, and keep the rest."""
        if not self.can_keep:
            return
        if self._ahead is not None:
            self._keep(memoryview(b"".join((self._ahead, data))))
            return
        size, at = len(data), 0
        if self.can_parse:
            at = self._parse(memoryview(data))
            if at < size and self._body_left > 0:
                at += self._parse(memoryview(data)[at:])
            self.on_parsed()
        if at < size:
            self._keep(memoryview(data)[at:])
        elif size >= AHEAD_BYTES and self.can_keep:
            self._ahead = memoryview(b"")
            self.hold_reading()
            self.go_on()

    def go_on(self) -> None:
        """Wait for a turn, if there is something to parse and nothing else to wait for."""
        if self._ahead is None or self._waits_for_turn:
            return
        if self.can_parse or not len(self._ahead):
            self._waits_for_turn = True
            self.service.turns.wait(self)

    def take_turn(self) -> float:
        """Parse one more piece; see `Participant`."""
        self._waits_for_turn = False
        ahead = self._ahead
        if ahead is None:
            return 0.0
        if not len(ahead):
            self.drop_ahead()
            return READ_S
        if not self.can_parse:  # `go_on` is called when it can
            return 0.0
        began = time.perf_counter()
        try:
            at = self._parse(ahead)  # mypyc would call it twice inside the brackets
            self.on_parsed()
        except Exception:  # a bug, which the event loop logs
            self.transport.abort()
            raise
        if self._ahead is not None:  # otherwise it was dropped
            if at < len(ahead):
                self._keep(ahead[at:])
            else:
                self.drop_ahead()
        return time.perf_counter() - began + (0.0 if self.is_answered else TASK_S)

    def drop_ahead(self) -> None:
        """Forget what was not parsed."""
        if self._ahead is not None:
            self._ahead = None
            self.service.bodies.give_back(self._ahead_counted)
            self._ahead_counted = 0
            self.release_reading()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        super().resume_writing()
        self.go_on()

    def close_behind_answer(self) -> None:
        """See `ClosingConnection`."""
        super().close_behind_answer()
        self.drop_ahead()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self.drop_ahead()
        super().connection_lost(exc)

    def _parse(self, data: memoryview) -> int:
        """Parse up to the end of a head or a body; returns the number of bytes."""
        if self._body_left > 0:
            end = min(self._body_left, len(data))
        else:
            found = HEAD_END.search(data, 0, PIECE_BYTES)
            end = found.end() if found is not None else min(len(data), PIECE_BYTES)
        self.parse(data if end == len(data) else data[:end])
        return end

    def _keep(self, rest: memoryview) -> None:
        """Keep bytes for a later turn."""
        if not self.can_keep:
            return
        if 2 * len(rest) < memoryview(rest.obj).nbytes:  # a few bytes must not keep a whole read
            rest = memoryview(bytes(rest))
        self._ahead = rest
        try:
            self._ahead_counted = self.service.bodies.hold(len(rest), self._ahead_counted)
        except Overloaded as error:
            self.drop_ahead()
            self.on_too_much_ahead(error)
            return
        if len(rest) >= AHEAD_BYTES:
            self.hold_reading()
        else:
            self.release_reading()
        self.go_on()
