"""uvicorn with a custom shutdown, for one process or for one of several workers.

A shutdown drains: the server reports not ready and accepts no new work, then closes its listener,
answers every accepted request, and closes the backends. A signal starts it, or the parent's order.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sized
from typing import TYPE_CHECKING

import structlog
import uvicorn

from app.processes.hang_timer import HangTimer
from app.processes.listener import Listener, SocketHandover, Source, url_of
from app.processes.worker import (
    ALL_LOADED,
    DRAIN,
    GRPC_CONNECTION,
    LISTENS,
    SIGNALS,
    OpenConnections,
    Worker,
)

if TYPE_CHECKING:
    from app.serving.lifecycle import Lifecycle

LOG = structlog.get_logger(__name__)
# After the last answer, open connections have this long to send their next request and get a 503:
# closing at once would cut off clients that are sending.
LINGER_S = 1.0
RESERVE = 0.2  # share of the budget, for writing answers and closing backends
DATE_S = 1.0  # how often the Date header is renewed
LOOP_HANGS = 4  # times the limit of a forward
LEAST_HANG_S = 5.0  # the loop itself blocks for a second while torch loads a large file


class Server(uvicorn.Server):
    """A uvicorn server that handles signals itself and drains before it closes connections.

    Args:
        config: uvicorn's configuration.
        lifecycle: what to drain.
        drain_s: budget of a graceful stop in seconds.
        hang_s: limit of a forward; `HangTimer` ends the process if its event loop blocks for four
            times as long, at least 5 s.
        worker: set in one of several processes: source of connections and of the order to stop.

    Attributes:
        shows_page: whether to log the page's URL; with several workers, the parent logs it.
        take_grpc: takes connections of the port for gRPC, if the parent listens there.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        lifecycle: Lifecycle,
        drain_s: float,
        hang_s: float,
        worker: Worker | None = None,
    ) -> None:
        super().__init__(config)
        self._lifecycle = lifecycle
        self._drain_s = drain_s
        self._hang_s = max(LOOP_HANGS * hang_s, LEAST_HANG_S)
        self._worker = worker
        self.shows_page = False
        self.take_grpc: Callable[[socket.socket], None] | None = None
        self._stopping = False
        self._stop_ordered = asyncio.Event()
        if worker is not None:
            self.server_state.connections = OpenConnections(worker)  # type: ignore[assignment]

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals; uvicorn's own method would raise them again at the end and exit 143."""
        for number in SIGNALS if self._worker is None else ():
            signal.signal(number, self._signalled)
        yield

    def _signalled(self, number: int, _: object) -> None:
        if self._stopping:
            os._exit(128 + number)
        self._stop(signal.Signals(number).name)

    def _ordered(self, order: bytes) -> None:
        if not order:
            os._exit(1)  # the parent has ended: nothing else would end this process
        if order == ALL_LOADED:
            self._lifecycle.others_loaded()
        elif order == DRAIN and not self._stopping:
            self._stop("parent")

    def _stop(self, ordered_by: str) -> None:
        self._stopping = True
        LOG.info("draining", signal=ordered_by, budget_s=self._drain_s)
        self._lifecycle.begin_drain(self._drain_s)
        self.should_exit = True
        with contextlib.suppress(RuntimeError):  # the loop has ended
            asyncio.get_running_loop().call_soon_threadsafe(self._stop_ordered.set)

    async def main_loop(self) -> None:
        """Wait for the order to stop; uvicorn's own loop polls ten times a second."""
        timer = HangTimer(self._hang_s)
        turned_at = time.monotonic()
        try:
            while not await self.on_tick(0):  # renews the Date header at multiples of ten
                timer.rewind()
                still_s = time.monotonic() - turned_at
                if still_s >= self._hang_s:
                    LOG.warning("loop_stood_still", seconds=round(still_s))
                turned_at += still_s
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(DATE_S):
                        await self._stop_ordered.wait()
        finally:
            timer.cancel()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Bind first, to detect a busy port before anything is loaded; then listen."""
        if self._worker is not None:
            await self._join(self._worker)
            return
        if sockets is not None:  # already listening
            await super().startup(sockets)
            return
        bound = self.config.bind_socket()
        try:
            await super().startup(sockets=[])  # the lifespan
        except BaseException:
            bound.close()
            raise
        url = url_of(bound)
        self.servers = [Listener(bound, self._protocol, self.config.backlog)]  # type: ignore[list-item]
        LOG.info("listening", url=url)
        if self.shows_page:
            LOG.info("page", url=url)

    async def _join(self, worker: Worker) -> None:
        """Receive connections from the parent instead of a port."""
        await super().startup(sockets=[])
        others = {} if self.take_grpc is None else {GRPC_CONNECTION: self.take_grpc}
        source = SocketHandover(worker.channel, self._protocol, self._ordered, worker, others)
        self.servers = [source]  # type: ignore[list-item]
        worker.tell(LISTENS)

    def _protocol(self) -> asyncio.Protocol:
        """Create the protocol of a connection in the same way as uvicorn."""
        make: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        state = self.lifespan.state
        return make(config=self.config, server_state=self.server_state, app_state=state)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, answer accepted requests, then let uvicorn close the rest."""
        self._lifecycle.begin_drain(self._drain_s)
        for server in self.servers:
            server.close()
            if isinstance(server, Source):  # others wait for connections, too
                await server.wait_closed()
        reserve_s = RESERVE * self._drain_s  # to write answers and close backends
        await self._lifecycle.drain(max(0.0, self._lifecycle.stop_left_s() - reserve_s))
        # Every outcome is settled; answers are being written, and new requests get a 503.
        connections = self.server_state.connections
        linger_s = min(LINGER_S, self._lifecycle.stop_left_s() / 2)
        await _until_empty(connections, time.monotonic() + linger_s)
        for connection in list(connections):
            connection.shutdown()  # idle ones close now, the others once their answer is read
        writing_s = max(0.0, self._lifecycle.stop_left_s() - reserve_s / 2)
        await _until_empty(connections, time.monotonic() + writing_s)
        # The remaining clients do not send their body or read their answer: uvicorn cancels them.
        for connection in list(connections):
            connection.give_up()  # type: ignore[union-attr]  # the fast path has no task to cancel
        linger_s = min(LINGER_S, self._lifecycle.stop_left_s())  # for clients to read these answers
        await _until_empty(connections, time.monotonic() + linger_s)
        self.config.timeout_graceful_shutdown = 0 if connections else 1
        await super().shutdown(sockets)
        LOG.info("stopped")


async def _until_empty(collection: Sized, deadline: float) -> None:
    """Poll a hundred times a second: uvicorn does not signal the end of a request or connection.

    The loop may have stood still until the deadline, so the last pause comes after it: in this
    pause the loop reads the requests that arrived before.
    """
    is_late = False
    while collection and not is_late:
        is_late = time.monotonic() >= deadline
        await asyncio.sleep(0.01)
