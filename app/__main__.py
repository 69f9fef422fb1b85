"""`python -m app`: uvicorn with our settings, and the signals.

The first SIGTERM or SIGINT drains: not ready and no new work, then no new connections, then
everything that was accepted is answered, the backends are closed, and the exit code is 0. A second
signal ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sized

import structlog
import uvicorn
from fastapi import FastAPI

from app.lifecycle import Lifecycle
from app.listener import Listener
from app.logs import configure_logs
from app.main import DEVICE_LOST_EXIT_CODE, create_app
from app.settings import Settings, SettingsError, load_settings

LOG = structlog.get_logger(__name__)
SIGNALS = (signal.SIGTERM, signal.SIGINT)
# After the last answer, open connections get this long to bring their next request and be told 503:
# closing at once would cut off clients that are just sending.
LINGER_S = 1.0
RESERVE = 0.2  # of the budget
USAGE_EXIT_CODE = 2
LISTEN_EXIT_CODE = 1


class Server(uvicorn.Server):
    """A uvicorn server that leaves the signals to us and drains before it closes connections.

    Args:
        config: uvicorn's.
        lifecycle: what to drain.
        drain_s: budget of a graceful stop in seconds.
    """

    def __init__(self, config: uvicorn.Config, lifecycle: Lifecycle, drain_s: float) -> None:
        super().__init__(config)
        self._lifecycle = lifecycle
        self._drain_s = drain_s
        self._stopping = False

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Uvicorn's own would raise the signal again when it has stopped, and exit 143."""
        for number in SIGNALS:
            signal.signal(number, self._signalled)
        yield

    def _signalled(self, number: int, _: object) -> None:
        if self._stopping:
            os._exit(128 + number)
        self._stopping = True
        LOG.info("draining", signal=signal.Signals(number).name, budget_s=self._drain_s)
        self._lifecycle.begin_drain(self._drain_s)
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Bind first, so that a busy port is noticed before anything is loaded; then listen."""
        if sys.platform == "win32" or sockets is not None:  # no readers there, or listening already
            await super().startup(sockets)
            return
        bound = self.config.bind_socket()
        try:
            await super().startup(sockets=[])  # the lifespan
        except BaseException:
            bound.close()
            raise
        self.servers = [Listener(bound, self._protocol, self.config.backlog)]  # type: ignore[list-item]

    def _protocol(self) -> asyncio.Protocol:
        """What uvicorn makes for each connection."""
        make: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        state = self.lifespan.state
        return make(config=self.config, server_state=self.server_state, app_state=state)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, answer what was accepted, then let uvicorn close what is left."""
        self._lifecycle.begin_drain(self._drain_s)
        for server in self.servers:
            server.close()
        reserve_s = RESERVE * self._drain_s  # for answers to be written and backends to be closed
        await self._lifecycle.drain(max(0.0, self._lifecycle.stop_left_s() - reserve_s))
        # Every outcome is settled; answers are being written, and clients told to go elsewhere.
        connections = self.server_state.connections
        linger_s = min(LINGER_S, self._lifecycle.stop_left_s() / 2)
        await _until_empty(connections, time.monotonic() + linger_s)
        for connection in list(connections):
            connection.shutdown()  # idle ones close, the others when their answer has been read
        writing_s = max(0.0, self._lifecycle.stop_left_s() - reserve_s / 2)
        await _until_empty(connections, time.monotonic() + writing_s)
        # What is there even now does not send its body, or not read its answer: uvicorn cancels it.
        self.config.timeout_graceful_shutdown = 0 if connections else 1
        await super().shutdown(sockets)
        LOG.info("stopped")


async def _until_empty(collection: Sized, deadline: float) -> None:
    """Uvicorn tells nobody when a request or connection ends: look a hundred times a second."""
    while collection and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def main(create: Callable[[Settings], FastAPI] = create_app) -> int:
    """Serve what `create` puts together until a signal comes; returns the exit code."""
    # Serving TorchScript is what this is for; torch 2.13 announces its deprecation at every call.
    warnings.filterwarnings("ignore", "`torch.jit.*is deprecated")
    try:
        settings = load_settings(os.environ)
        configure_logs(settings.log_level, settings.log_format)
        app = create(settings)
    except (SettingsError, ValueError) as error:
        sys.stderr.write(f"torchlane: {error}\n")
        return USAGE_EXIT_CODE
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        loop="uvloop" if sys.platform != "win32" else "asyncio",
        http="httptools",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=settings.log_level == "debug",
        server_header=False,
        proxy_headers=False,  # nothing here looks at the client's address
    )
    lifecycle: Lifecycle = app.state.lifecycle
    return _serve(Server(config, lifecycle, settings.drain_s), lifecycle, settings)


def _serve(server: Server, lifecycle: Lifecycle, settings: Settings) -> int:
    try:
        server.run()
    except SystemExit:  # uvicorn's way to say that the port is taken; it has logged why
        hint = f"is port {settings.port} in use? TORCHLANE_PORT chooses another"
        sys.stderr.write(f"torchlane: could not listen on {settings.host}; {hint}\n")
        return LISTEN_EXIT_CODE
    if lifecycle.device_lost:
        return DEVICE_LOST_EXIT_CODE
    return 0 if server.started else 1


if __name__ == "__main__":
    sys.exit(main())
