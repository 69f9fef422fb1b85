"""The application behind a real socket in this process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.server import ServerState

from app.api.service import Service
from app.api.transport.connection import Connection
from app.backends.base import Backend
from app.backends.fake import FakeBackend, Step
from app.backends.selection import Selection
from app.main import create_app
from app.registry.repository import Artifact
from app.serving.installer import BackendFactory
from app.settings import Settings
from app.types import Arrays, Device
from tests.integration.wire import LIMIT_S, READY_LIMIT_S, Wire, WireAnswer, request, total_of


class Doubles:
    """Makes backends of a model `double` that tests can block and inspect.

    Args:
        script: of each backend, see `FakeBackend`; None: they double.

    Attributes:
        made: every backend, in order.
    """

    def __init__(self, script: Step | None = None) -> None:
        self.made: list[FakeBackend] = []
        self._script = script
        self._hold_again = False

    def __call__(self, artifact: Artifact, selection: Selection, device: Device) -> Backend:
        self.made.append(FakeBackend(self._double))
        return self.made[-1]

    @property
    def one(self) -> FakeBackend:
        (backend,) = self.made
        return backend

    def hold(self) -> None:
        """Let batches wait from now on, and forget those of the load."""
        self.one.batches.clear()
        self.one.gate.clear()

    def go_on(self) -> None:
        self.one.gate.set()

    def one_at_a_time(self) -> None:
        """Hold each batch until `go_on` is called for it."""
        self.hold()
        self._hold_again = True

    def _double(self, inputs: Arrays) -> Arrays:
        if self._hold_again:
            self.one.gate.clear()
        made = self._script(inputs) if self._script is not None else None
        return made if made is not None else {"y": inputs["x"] * 2}


def large_for_five(values: int, value: float = 0.0) -> Doubles:
    """Doubles, but with an answer of that many values for a row that begins with 5."""

    def script(inputs: Arrays) -> Arrays | None:
        if inputs["x"][0, 0] != 5:
            return None
        return {"y": np.full((len(inputs["x"]), values), value, np.float32)}

    return Doubles(script)


@dataclass
class Listening:
    """A listening application.

    Attributes:
        service: what its routes work with.
        asgi: method and path of every request that took the ASGI way.
        problems: exceptions that reached the event loop.
    """

    app: FastAPI
    port: int
    state: ServerState
    service: Service
    asgi: list[str] = field(default_factory=list)
    problems: list[dict[str, Any]] = field(default_factory=list)
    _wires: list[Wire] = field(default_factory=list)

    @property
    def connections(self) -> list[Connection]:
        """Those that are open on the server's side."""
        return [each for each in self.state.connections if isinstance(each, Connection)]

    async def connect(self) -> Wire:
        """A new connection, closed when the test ends."""
        wire = Wire(*await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 26))
        self._wires.append(wire)
        return wire

    async def ask(self, data: bytes) -> WireAnswer:
        """Over a connection of its own."""
        wire = await self.connect()
        answer = await wire.ask(data)
        await wire.close()
        return answer

    async def metric(self, name: str, **labels: str) -> float:
        """The sum over all series of a metric that carry these labels."""
        answer = await self.ask(request("/metrics", b"", method="GET"))
        return total_of(answer.body.decode(), name, labels)

    async def close(self) -> None:
        """Close what tests have opened, and forget what they have asked."""
        while self._wires:
            await self._wires.pop().close()
        await until(lambda: not self.state.connections)
        self.asgi.clear()


@contextlib.asynccontextmanager
async def listening(
    model_dir: Path,
    application: ASGIApp | None = None,
    *,
    root_path: str = "",
    make_backend: BackendFactory | None = None,
    keep_alive_s: float = 5.0,
    **settings: Any,
) -> AsyncIterator[Listening]:
    """The application over a repository, ready, behind a free port of the loopback interface.

    Args:
        model_dir: the repository.
        application: answers what is not on the fast path, instead of the server's own.
        root_path: see `uvicorn.Config`.
        make_backend: other backends than torch's.
        keep_alive_s: how long an idle connection stays.
        settings: see `app.settings`.
    """
    settings = {"devices": "cpu"} | settings  # else each start would measure the machine
    app = create_app(Settings(model_dir=model_dir, _env_file=None, **settings), make_backend)
    loop = asyncio.get_running_loop()
    asgi: list[str] = []
    config = uvicorn.Config(
        _noting(application or app, asgi),
        http=app.state.connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        root_path=root_path,
        timeout_keep_alive=keep_alive_s,  # type: ignore[arg-type]  # a float does as well
    )
    config.load()
    state = ServerState()

    def protocol() -> Connection:
        made: Connection = app.state.connection(config=config, server_state=state, app_state={})
        return made

    server = Listening(app, 0, state, protocol().service, asgi)
    handler = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: server.problems.append(context))

    async with app.router.lifespan_context(app):
        async with asyncio.timeout(READY_LIMIT_S):
            while not app.state.lifecycle.readiness().ready:
                await asyncio.sleep(0.005)
        listener = await loop.create_server(protocol, "127.0.0.1", 0)
        # Else the system would take megabytes of an answer that nobody reads.
        listener.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 128 << 10)
        server.port = listener.sockets[0].getsockname()[1]
        try:
            yield server
        finally:
            await server.close()
            listener.close()
            loop.set_exception_handler(handler)
    assert server.problems == []


async def until(condition: Callable[[], bool]) -> None:
    """Wait for an effect of the other side."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.002)


def _noting(app: ASGIApp, requests: list[str]) -> ASGIApp:
    async def noted(scope: Scope, receive: Receive, send: Send) -> None:
        requests.append(f"{scope['method']} {scope['path']}")
        await app(scope, receive, send)

    return noted
