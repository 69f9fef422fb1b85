"""Starts a server on a free port and its own core, waits until it is ready, and ends it."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

READY_WITHIN_S = 90.0
POLL_S = 0.1
STOP_WITHIN_S = 15.0
LOG_TAIL_BYTES = 2000


class ServerError(Exception):
    """A server did not start, or did not answer; the message holds the end of its log."""


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """How to start a server.

    Attributes:
        arguments: of the Python interpreter; `{port}` is replaced.
        environment: over this process's own; `{port}` is replaced.
        ready_path: answers 503 while the server is not ready.
    """

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    ready_path: str = "/"


@dataclass(frozen=True, slots=True)
class Server:
    """One that runs."""

    name: str
    port: int
    process: subprocess.Popen[bytes]
    log: IO[bytes]

    def log_tail(self) -> str:
        """The end of what it has written."""
        self.log.seek(0)
        return self.log.read()[-LOG_TAIL_BYTES:].decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Cores:
    """Where to run; None: wherever the system likes."""

    server: int | None
    generator: int | None


def choose_cores() -> Cores:
    """The last usable core for the server, the first for the load; none if there is but one."""
    if not hasattr(os, "sched_getaffinity"):
        return Cores(None, None)
    usable = sorted(os.sched_getaffinity(0))
    return Cores(usable[-1], usable[0]) if len(usable) > 1 else Cores(None, None)


@contextlib.contextmanager
def pinned(core: int | None) -> Iterator[None]:
    """Run on one core, with all threads and processes that are started meanwhile."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def running(specs: Sequence[ServerSpec], core: int | None) -> Iterator[list[Server]]:
    """The servers, ready, all on one core, where the others idle while one is loaded; ends them.

    Raises:
        ServerError: if one does not become ready.
    """
    servers: list[Server] = []
    try:
        with pinned(core):
            for spec in specs:
                servers.append(_start(spec))
        for server, spec in zip(servers, specs, strict=True):
            _wait_ready(server, spec.ready_path)
        yield servers
    finally:
        _stop(servers)


def fetch(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    """One request by a connection of its own: status and body.

    Raises:
        ServerError: if there is no answer.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise ServerError(f"no answer to {method} {path} on port {port}: {error!r}") from error
    finally:
        connection.close()


def _start(spec: ServerSpec) -> Server:
    port = _free_port()
    given = {name: value.format(port=port) for name, value in spec.environment.items()}
    log = tempfile.TemporaryFile()  # noqa: SIM115  # closed when the server is stopped
    process = subprocess.Popen(
        [sys.executable, *(argument.format(port=port) for argument in spec.arguments)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env={**os.environ, **given},
    )
    return Server(spec.name, port, process, log)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_ready(server: Server, path: str) -> None:
    give_up_at = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < give_up_at:
        if server.process.poll() is not None:
            raise ServerError(
                f"{server.name} ended with exit code {server.process.returncode} "
                f"before it was ready; its log ends with:\n{server.log_tail()}"
            )
        with contextlib.suppress(ServerError):
            if fetch(server.port, "GET", path)[0] != 503:
                return
        time.sleep(POLL_S)
    raise ServerError(
        f"{server.name} was not ready within {READY_WITHIN_S:g} s; "
        f"its log ends with:\n{server.log_tail()}"
    )


def _stop(servers: Sequence[Server]) -> None:
    for server in servers:
        server.process.terminate()
    for server in servers:
        try:
            server.process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            server.process.kill()
            server.process.wait()
        server.log.close()
