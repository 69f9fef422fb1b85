"""How a connection reads: one request at a time, in fair turns with all other connections.

A request is parsed once the one before it is answered. Each read may bring one request, which is
parsed at once. What the client sent ahead of its answers waits, and takes turns.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import Protocol

from app.api.service import Service
from app.api.transport.parsing import NOTHING, RequestParser
from app.errors import CallerError, Overloaded, TorchlaneError

PIECE_BYTES = 4096  # parsed at once, except bodies of known length; chunks of a byte take 1 ms
AHEAD_BYTES = 64 << 10  # received and not parsed; beyond this the connection reads no more
READ_S = 0.0001  # about what a full read costs
TASK_S = 0.0002  # about what a request costs that is not answered while it is parsed
HEAD_END = re.compile(rb"\A\r?\n|\n\r?\n")  # a read may end within it


class ParsingConnection(Protocol):
    """What a reader needs from its connection."""

    parser: RequestParser

    @property
    def can_parse(self) -> bool:
        """Whether to parse more now; a request waits until the one before it is answered."""
        raise NotImplementedError

    @property
    def is_answered(self) -> bool:
        """Whether all requests that were read are answered."""
        raise NotImplementedError

    def on_parsed(self) -> None:
        """Called when nothing more is parsed for now."""

    def cut(self, error: TorchlaneError) -> None:
        """Answer what was parsed, or with the error, then close: nothing more is read."""


class Reader:
    """The client's direction of a connection.

    Args:
        connection: parses what is read.
        service: has the turns, and the memory that also counts incomplete bodies.
        transport: of the connection.

    Attributes:
        ahead: what was received and not parsed; empty: only the next read waits for its turn.
        is_paused: whether the application does not read its body.
    """

    def __init__(
        self, connection: ParsingConnection, service: Service, transport: asyncio.Transport
    ) -> None:
        self._connection: ParsingConnection | None = connection
        self._service = service
        self._transport = transport
        self.ahead: memoryview | None = None
        self._ahead_counted = 0
        self._waits_for_turn = False
        # Two reasons to read nothing; either suffices.
        self._is_held = False  # by too much that was sent ahead
        self.is_paused = False
        self._is_stopped = False

    def received(self, data: bytes) -> None:
        """Parse one request, unless earlier ones wait, and keep the rest."""
        connection = self._connection
        if connection is None or connection.parser.reads == NOTHING:
            return
        if self.ahead is not None:
            self._keep(memoryview(b"".join((self.ahead, data))))
            return
        size, at = len(data), 0
        if connection.can_parse:
            at = self._parse(connection, memoryview(data))
            if at < size and connection.parser.body_left > 0:
                at += self._parse(connection, memoryview(data)[at:])
            connection.on_parsed()
        if at < size:
            self._keep(memoryview(data)[at:])
        elif size >= AHEAD_BYTES and connection.parser.reads != NOTHING:
            self.ahead = memoryview(b"")
            self._hold(True)
            self.go_on()

    def go_on(self) -> None:
        """Wait for a turn, if there is something to parse and nothing else to wait for."""
        if self.ahead is None or self._waits_for_turn or self._connection is None:
            return
        if self._connection.can_parse or not len(self.ahead):
            self._waits_for_turn = True
            self._service.turns.wait(self)

    def take_turn(self) -> float:
        """Parse one more piece; see `Participant`."""
        self._waits_for_turn = False
        ahead, connection = self.ahead, self._connection
        if ahead is None or connection is None:
            return 0.0
        if not len(ahead):
            self.drop()
            return READ_S
        if not connection.can_parse:  # `go_on` is called when it can
            return 0.0
        began = time.perf_counter()
        try:
            at = self._parse(connection, ahead)  # mypyc would call it twice inside the brackets
            connection.on_parsed()
        except Exception:  # a bug, which the event loop logs
            self._transport.abort()
            raise
        if self.ahead is not None:  # otherwise it was dropped
            if at < len(ahead):
                self._keep(ahead[at:])
            else:
                self.drop()
        return time.perf_counter() - began + (0.0 if connection.is_answered else TASK_S)

    def drop(self) -> None:
        """Forget what was not parsed."""
        if self.ahead is not None:
            self.ahead = None
            self._service.bodies.give_back(self._ahead_counted)
            self._ahead_counted = 0
            self._hold(False)

    def pause(self) -> None:
        """Read no more bytes from the client until `resume`."""
        self.is_paused = True
        self._start_or_stop()

    def resume(self) -> None:
        """Read again, unless too much was sent ahead."""
        self.is_paused = False
        self._start_or_stop()

    def lost(self) -> None:
        """The connection is closed."""
        self.drop()
        self._connection = None  # otherwise both would wait for the garbage collector

    def _parse(self, connection: ParsingConnection, data: memoryview) -> int:
        """Parse up to the end of a head or a body; returns the number of bytes."""
        parser = connection.parser
        if parser.body_left > 0:
            end = min(parser.body_left, len(data))
        else:
            found = HEAD_END.search(data, 0, PIECE_BYTES)
            end = found.end() if found is not None else min(len(data), PIECE_BYTES)
        try:
            parser.parse(data if end == len(data) else data[:end])
        except CallerError as error:
            connection.cut(error)
        return end

    def _keep(self, rest: memoryview) -> None:
        """Keep bytes for a later turn."""
        connection = self._connection
        if connection is None or connection.parser.reads == NOTHING:
            return
        if 2 * len(rest) < memoryview(rest.obj).nbytes:  # a few bytes must not keep a whole read
            rest = memoryview(bytes(rest))
        self.ahead = rest
        try:
            self._ahead_counted = self._service.bodies.hold(len(rest), self._ahead_counted)
        except Overloaded as error:
            self.drop()
            connection.cut(error)
            return
        self._hold(len(rest) >= AHEAD_BYTES)
        self.go_on()

    def _hold(self, is_held: bool) -> None:
        self._is_held = is_held
        self._start_or_stop()

    def _start_or_stop(self) -> None:
        stops = self._is_held or self.is_paused
        if stops != self._is_stopped and not self._transport.is_closing():
            self._is_stopped = stops
            if stops:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()
