"""A client's connection: its bytes go to gRPC's core, within limits that the core lacks.

The core applies its limits of metadata and of open calls only once the client has acknowledged its
SETTINGS. A client that never does could fill the memory: one byte may refer to a field of 4 KB that
it has sent before. So the server acknowledges them first, and drops the client's own ACK. It also
lets clients take turns.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
import time
from collections.abc import Callable

import structlog

from app.api.oip.grpc.fair_queue import FairQueue
from app.api.oip.grpc.frames import ACK, HEAD_BYTES, Frames
from app.api.oip.grpc.peers import Peer
from app.errors import TorchlaneError

LOG = structlog.get_logger(__name__)
FIRST_S = 1.0  # for a new connection to begin its first call
FLUSH_S = 5.0  # for a client to read the last bytes of its connection
NONE_UNREAD = struct.pack("i", 0)
QUEUED, FULL = 1, 2  # reasons why a client is not read


class Client(asyncio.BufferedProtocol):
    """A client's connection; see `Queueing` and `asyncio.BufferedProtocol`.

    Args:
        turns: of all clients.
        buffer: for what is read; it is free again when the reading has ended.
        opened: called when the connection begins.
        ended: called when it has been closed.

    Attributes:
        has_more: see `Queueing`.
        calls: see `Queueing`.
        queued: see `Queueing`.
        ahead: see `Queueing`.
        peer: what its calls hold; None until the core has a name for it.
        has_ended: whether its end has been counted.
        core_spoke: set when the core has sent its SETTINGS, or is gone.
    """

    def __init__(
        self,
        turns: FairQueue,
        buffer: memoryview,
        opened: Callable[[Client], None],
        ended: Callable[[Client], None],
    ) -> None:
        self.has_more = False
        self.calls = 0
        self.ahead = 0
        self.queued = False
        self.peer: Peer | None = None
        self.has_ended = False
        self._passed_s = 0.0  # when it passed on the last head of a call
        self._turns = turns
        self._buffer = buffer
        self._opened = opened
        self._ended = ended
        self._core: asyncio.Transport | None = None
        self._inner: socket.socket | None = None  # the core's transport has it
        self.core_spoke = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self._early = b""  # from the core, before this connection is open
        self._frames = Frames()
        self._data = b""
        self._at = 0  # the data before this position has been passed on
        self._pauses = 0
        self._abort: asyncio.TimerHandle | None = None

    # The client's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._opened(self)
        self._transport.write(self._early)  # type: ignore[union-attr]
        self._early = b""
        if self._core is None or self._core.is_closing():
            self.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        new = bytes(self._buffer[:nbytes])
        self._data = self._data[self._at :] + new if self._at < len(self._data) else new
        self._at = 0
        if self._frames.opened:
            self._turns.take(self)
            return
        try:
            self._at = self._frames.open(self._data)
        except TorchlaneError as error:
            self._refuse(error)
            return
        if self._at and self._core is not None:
            # Acknowledge the core's SETTINGS for the client: from now on its limits hold.
            self._core.write(self._data[: self._at] + ACK)
            self._turns.take(self)

    def pause_writing(self) -> None:
        """See `asyncio.BaseProtocol`: the client reads slowly."""
        if self.peer is not None:
            self.peer.stalled_since = time.monotonic()
        if self._core is not None and not self._core.is_closing():
            self._core.pause_reading()

    def resume_writing(self) -> None:
        if self.peer is not None:
            self.peer.stalled_since = None
        if self._core is not None and not self._core.is_closing():
            self._core.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended(self)
        self.close()
        if self._abort is not None:
            self._abort.cancel()

    # The core's side.

    def core_made(self, core: asyncio.Transport, inner: socket.socket) -> None:
        """The connection to the core is open."""
        self._core = core
        self._inner = inner

    def answered(self, data: bytes) -> None:
        """The core has sent something; first its SETTINGS."""
        if self._transport is None:
            self._early += data
            self.core_spoke.set()
        else:
            self._transport.write(data)

    def core_full(self) -> None:
        """The core reads slowly."""
        self._pause(FULL)

    def core_ready(self) -> None:
        """The core reads again."""
        self._unpause(FULL)
        if self._frames.opened and not self._pauses:
            self._turns.take(self)

    def close(self) -> None:
        """Close both sides; the client has a moment to read what it was sent."""
        self.core_spoke.set()
        if self._core is not None:
            self._core.close()
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.close()
            loop = asyncio.get_running_loop()
            self._abort = loop.call_later(FLUSH_S, transport.abort)

    def abort(self) -> None:
        """Close both sides at once."""
        self.core_spoke.set()
        for side in (self._core, self._transport):
            if side is not None:
                side.abort()

    def idle_since(self, now: float) -> float | None:
        """When it became idle; None if it has a call, or has had no time for the first."""
        peer = self.peer
        if peer is None or peer.calls or self.queued:
            return None
        since = max(peer.idle_since, self._passed_s)
        return since if now - since >= FIRST_S else None

    # Taking turns.

    def wait(self) -> None:
        self.queued = True
        self._pause(QUEUED)

    def resume(self) -> None:
        self.queued = False
        self._unpause(QUEUED)

    def is_read(self) -> bool:
        if self._core is None or self._core.is_closing() or self._inner is None:
            return True
        unread = fcntl.ioctl(self._inner.fileno(), termios.TIOCOUTQ, NONE_UNREAD)
        return unread == NONE_UNREAD

    def pass_on(self, budget: int, calls: int) -> int:
        self.has_more = False
        self.calls = 0
        if self._pauses & FULL or self._core is None or self._core.is_closing():
            return 0
        frames, data, at = self._frames, self._data, self._at
        try:
            to = frames.step(data, at, budget, calls)
        except TorchlaneError as error:
            self._refuse(error)
            return 0
        if frames.ack_at >= 0:  # this server has acknowledged them for the client
            self._core.write(data[at : frames.ack_at] + data[frames.ack_at + HEAD_BYTES : to])
        elif to > at:
            self._core.write(data[at:to])
        self._at = to
        self.calls = frames.calls
        if frames.calls:
            self._passed_s = time.monotonic()
        self.has_more = frames.more and to < len(data)
        return frames.cost

    def _refuse(self, error: TorchlaneError) -> None:
        LOG.debug("grpc_connection_refused", problem=str(error))
        self.close()

    def _pause(self, why: int) -> None:
        transport = self._transport
        if not self._pauses and transport is not None and not transport.is_closing():
            transport.pause_reading()
        self._pauses |= why

    def _unpause(self, why: int) -> None:
        transport = self._transport
        had, self._pauses = self._pauses, self._pauses & ~why
        if had and not self._pauses and transport is not None and not transport.is_closing():
            transport.resume_reading()


class Core(asyncio.Protocol):
    """The connection to gRPC's core for one client; see `asyncio.Protocol`."""

    def __init__(self, client: Client, inner: socket.socket) -> None:
        self._client = client
        self._inner = inner

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._client.core_made(transport, self._inner)  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        self._client.answered(data)

    def pause_writing(self) -> None:
        self._client.core_full()

    def resume_writing(self) -> None:
        self._client.core_ready()

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.close()
