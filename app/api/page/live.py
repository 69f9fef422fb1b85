"""GET /live: the server's load as a stream of events, one snapshot a second.

A snapshot is created and encoded once for all listeners, and only while there is one. It uses the
metrics, and needs no other counters.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator

import orjson
import structlog
from fastapi import Response
from starlette.types import Receive, Scope, Send

from app.access.entries import METRICS
from app.api.errors import HEAD_ONLY, TRANSPORT
from app.api.page.snapshot import Change, Series, read, snapshot, totals, version
from app.api.service import Service
from app.errors import Overloaded, ShuttingDown, TorchlaneError

LOG = structlog.get_logger(__name__)
MAX_LISTENERS = 32  # per process
FULL_RETRY_S = 10.0
INTERVAL_S = 1.0
# Several workers write their counts when a second of the clock begins. Reading in mid-second avoids
# the moment when only some workers have written.
PHASE_S = 0.5
LEAST_S = 0.5  # between two readings
STUCK_TICKS = 10  # a listener without room for this many snapshots is dropped
SEND_BUFFER_BYTES = 16 << 10  # in the kernel, which doubles it: snapshots that wait there age
HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # otherwise nginx buffers events
    (b"x-content-type-options", b"nosniff"),
    (b"connection", b"close"),  # with so small a buffer it cannot serve other answers
]


class Live:
    """Creates the snapshots and passes each to all listeners.

    Args:
        service: the source of the snapshots.

    Attributes:
        latest: the last snapshot as an event; None if there is none yet.
        next: the next snapshot; None if there are no more. Exists only while there are listeners.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        # GET /models says what is wrong with a version, to callers with a key.
        self._hides_detail = service.limits.open_metrics and service.guard.asks_for_keys
        self._listeners = 0
        self._ticking: asyncio.Task[None] | None = None
        self.latest: bytes | None = None
        self.next: asyncio.Future[bytes | None]

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Keep creating snapshots for one more listener.

        Raises:
            Overloaded: if there are too many listeners.
            ShuttingDown: if the server is shutting down.
        """
        if self._service.lifecycle.stopping:
            raise ShuttingDown("the server is shutting down")
        if self._listeners >= MAX_LISTENERS:
            raise Overloaded(
                f"/live already has {MAX_LISTENERS} listeners, the maximum", FULL_RETRY_S
            )
        self._listeners += 1
        try:
            if self._ticking is None:
                self._ticking = asyncio.create_task(self._tick())
                self._expect()
            yield
        finally:
            self._listeners -= 1
            if not self._listeners and self._ticking is not None:
                self._ticking.cancel()
                self._ended()

    async def _tick(self) -> None:
        try:
            before, before_at = await self._read()
            while not await _has_come(self._service.lifecycle.stop_begun, _until_next()):
                now, now_at = await self._read()
                self.latest = self._event(Change(before, now, now_at - before_at))
                before, before_at = now, now_at
                self.next.set_result(self.latest)
                self._expect()
        except Exception:
            LOG.exception("live_failed")
        self._ended()

    async def _read(self) -> tuple[Series, float]:
        return await self._service.metrics.read(read), time.monotonic()

    def _expect(self) -> None:
        self.next = asyncio.get_running_loop().create_future()

    def _ended(self) -> None:
        self.latest = self._ticking = None
        self.next.set_result(None)

    def _event(self, change: Change) -> bytes:
        loaded = self._service.loaded
        statuses = [status for name in loaded.names for status in loaded.statuses(name)]
        states = {each.name: each.state for each in self._service.lifecycle.replica_states(None)}
        content = {
            "at": round(time.time(), 3),
            **snapshot(change, states),
            "totals": totals(change.now, [each.id for each in statuses]),
            "versions": [version(each, hides_detail=self._hides_detail) for each in statuses],
        }
        return b"data: " + orjson.dumps(content) + b"\n\n"


class LiveStream(Response):
    """The stream that one listener gets.

    Args:
        live: has the snapshots.
        service: checks the key again for each snapshot.
        asks_for_key: whether a key is needed.
    """

    def __init__(self, live: Live, service: Service, *, asks_for_key: bool) -> None:
        super().__init__()
        self._live = live
        self._guard = service.guard
        self._asks_for_key = asks_for_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        start = {"type": "http.response.start", "status": 200, "headers": list(HEADERS)}
        if HEAD_ONLY in scope:
            await send(start)
            await send({"type": "http.response.body", "body": b""})
            return
        with self._live.listening():
            gone = asyncio.create_task(_disconnected(receive))
            try:
                await send(start)
                await self._send_all(scope, send, gone)
            finally:
                gone.cancel()
            await send({"type": "http.response.body", "body": b""})

    async def _send_all(self, scope: Scope, send: Send, gone: asyncio.Task[None]) -> None:
        """Send snapshots until the listener disconnects, loses its access, or the server stops."""
        transport: asyncio.Transport | None = scope.get(TRANSPORT)
        if transport is not None and (connection := transport.get_extra_info("socket")):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        stuck = 0
        event = self._live.latest
        while not gone.done() and stuck < STUCK_TICKS:
            if transport is not None and transport.get_write_buffer_size():
                stuck += 1  # it gets the next snapshot that it has room for
            elif event is not None:
                stuck = 0
                await send({"type": "http.response.body", "body": event, "more_body": True})
            coming = self._live.next
            await asyncio.wait((gone, coming), return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                return
            event = coming.result()
            if event is None or not self._may_listen(scope):
                return

    def _may_listen(self, scope: Scope) -> bool:
        """Whether the listener's key is still valid."""
        if not self._asks_for_key:
            return True
        try:
            self._guard.admit(dict(scope["headers"]), METRICS)
        except TorchlaneError:
            return False
        return True


async def _disconnected(receive: Receive) -> None:
    """Return when the caller disconnects, or sends a body in parts, which may never end."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect" or message.get("more_body"):
            return


async def _has_come(event: asyncio.Event, within_s: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await event.wait()
    return event.is_set()


def _until_next() -> float:
    """Seconds until the next moment for a reading."""
    left_s = INTERVAL_S - (time.time() - PHASE_S) % INTERVAL_S
    return left_s if left_s >= LEAST_S else left_s + INTERVAL_S
