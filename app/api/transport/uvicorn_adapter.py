"""uvicorn's HTTP connection, with names for all that we use of its internals.

No other file of `api` imports uvicorn: what another release of it changes is to be changed here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, cast

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)


class Occupant(Protocol):
    """What may stand where uvicorn keeps the cycle of the request that was read last.

    Attributes:
        response_complete: whether the answer has been written.
        keep_alive: whether the connection stays; set to False when the server stops.
    """

    response_complete: bool
    keep_alive: bool


class UvicornConnection(HttpToolsProtocol):
    """One connection; see uvicorn's class, and `asyncio.Protocol`.

    Args:
        uvicorn: what uvicorn gives to each of its protocols.

    Attributes:
        keep_alive_s: how long an idle connection stays.
        is_plain: whether uvicorn itself does nothing with a request but call the application.
    """

    def __init__(self, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        mine: Any = self
        self.keep_alive_s = float(mine.timeout_keep_alive)  # to uvicorn's types it is whole
        self.is_plain = (
            not self.access_log and self.limit_concurrency is None and not self.root_path
        )
        self._running: RequestResponseCycle | None = None  # the last that got a task

    @property
    def is_answered(self) -> bool:
        """Whether there is an answer to all that was read."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def reads_body(self) -> bool:
        """Whether the application waits for more of the body of what was read last."""
        return self.cycle.more_body

    @property
    def pipelined(self) -> int:
        """How many requests wait for those before them to be answered."""
        return len(self.pipeline)

    def is_common_post(self) -> bool:
        """Whether the head that was read is a POST's, and asks for nothing out of the ordinary."""
        parser = self.parser
        return (
            parser.get_method() == b"POST"
            and self.is_answered
            and parser.get_http_version() == "1.1"
            and parser.should_keep_alive()
            and not parser.should_upgrade()
            and not self.expect_100_continue
            and not self.flow.write_paused
        )

    def on_message_begin(self) -> None:
        """The first byte of a request; its scope is made when it is known to be needed."""
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def answer_by_asgi(self) -> None:
        """Have the application answer the request of which the head was read."""
        url, headers, expect = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()  # makes the scope, with headers of its own
        self.url, self.expect_100_continue = url, expect
        self.headers.extend(headers)
        super().on_headers_complete()

    def occupy(self, occupant: Occupant) -> None:
        """Put something else in the place of uvicorn's cycle."""
        self.cycle = cast(RequestResponseCycle, occupant)  # in what uvicorn looks at, it is one

    def is_occupied_by(self, occupant: Occupant) -> bool:
        """Whether what is read belongs to it, and not to a pipelined request behind it."""
        current: object = self.cycle
        return current is occupant

    def occupant_ended(self) -> None:
        """Its answer was written; uvicorn's own bookkeeping for that costs a timer."""
        self.server_state.total_requests += 1

    def stop_reading(self) -> None:
        """Take no more bytes from the client."""
        self.flow.pause_reading()

    def close_after_answers(self) -> None:
        """Answer what was read, then close."""
        self.cycle.keep_alive = False

    def write_answer(
        self, status: int, headers: Iterable[tuple[bytes, bytes]], content: bytes
    ) -> None:
        """Write a whole answer, with the headers that all have."""
        parts = [STATUS_LINE[status]]
        for name, value in (*self.server_state.default_headers, *headers):
            parts += (name, b": ", value, b"\r\n")
        parts += (b"\r\n", content)
        self.transport.write(b"".join(parts))

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True  # uvicorn tells the last that was read, not this one
            self._running.message_event.set()
        current: object = self.cycle
        if not isinstance(current, RequestResponseCycle):  # it would be told the ASGI way
            self.cycle = None  # type: ignore[assignment]  # as before the first request
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """The parser has given up; uvicorn's own answer is a text."""
        self.unreadable()

    def unreadable(self) -> None:
        """What came is not HTTP, or a callback of the parser has raised."""
        raise NotImplementedError

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """See uvicorn's class: every request that goes its way begins here."""
        self._running = cycle
        super()._start_asgi_task(cycle, app)
