"""Starts servers on free ports and one core, pauses those that are not measured, and ends them.

An idle server has a cost: some poll, and would take time on the core from the measured one. So all
but one are stopped by SIGSTOP, if they survive that.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from loadtests.errors import LoadTestError
from loadtests.traffic.target import TargetError, exchange

READY_WITHIN_S = 120.0
POLL_S = 0.1
STOP_WITHIN_S = 15.0
LOG_TAIL_BYTES = 2000
TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class ServerError(LoadTestError):
    """A server did not start or answer; the message has the end of its log."""


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """How to start a server.

    Attributes:
        command: `{port}` is replaced by a free port.
        environment: added to this process's own; the port is replaced here too.
        ready_path: answers 200 as soon as the server is ready.
        core: to run on; None: any.
        sleeps: whether it is stopped while others are measured.
    """

    name: str
    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    ready_path: str = "/"
    core: int | None = None
    sleeps: bool = True


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A running server, in a separate session."""

    name: str
    port: int
    process: subprocess.Popen[bytes]
    log: IO[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def log_tail(self) -> str:
        self.log.seek(0)
        return self.log.read()[-LOG_TAIL_BYTES:].decode(errors="replace")

    def cpu_s(self) -> float:
        """Return the processor time of all its processes, user and system, in seconds."""
        ticks = sum(int(stat[11]) + int(stat[12]) for _, stat in self._processes())
        return ticks / TICKS_PER_S

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to all its processes that still exist."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)  # all of them if there is no /proc
        for pid, _ in self._processes():  # workers may have their own process groups
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _processes(self) -> Iterator[tuple[int, list[str]]]:
        """Yield its session's processes, with their fields in /proc from the state on."""
        for file in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # a process may end meanwhile
                stat = file.read_text().rpartition(")")[2].split()
                if int(stat[3]) == self.process.pid:
                    yield int(file.parent.name), stat


@dataclass(frozen=True, slots=True)
class Cores:
    """The cores to run on; None: any."""

    server: int | None
    generator: int | None


def choose_cores() -> Cores:
    """Return the last usable core for the server, the first for the load; none if only one."""
    if not hasattr(os, "sched_getaffinity"):
        return Cores(None, None)
    usable = sorted(os.sched_getaffinity(0))
    return Cores(usable[-1], usable[0]) if len(usable) > 1 else Cores(None, None)


@contextlib.contextmanager
def pinned(core: int | None) -> Iterator[None]:
    """Run the block on one core, with all threads and processes that it starts."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass(slots=True)
class Fleet:
    """The servers of a benchmark; each is started once, at its first use.

    Use it as a context, which ends all servers at its exit.
    """

    _servers: dict[ServerSpec, RunningServer] = field(default_factory=dict)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.ExitStack() as stack:  # each, even if another one cannot be stopped
            for spec in list(self._servers):
                stack.callback(self.stop, spec)

    @property
    def specs(self) -> tuple[ServerSpec, ...]:
        return tuple(self._servers)

    def start(self, spec: ServerSpec) -> None:
        """Start a server if it does not run; pause it once it is ready.

        Raises:
            ServerError: if it does not become ready.
        """
        if spec in self._servers:
            return
        server = _start(spec)
        try:
            _wait_ready(server, spec.ready_path)
        except BaseException:
            _stop(server)
            raise
        if spec.sleeps:
            server.signal_all(signal.SIGSTOP)
        self._servers[spec] = server

    @contextlib.contextmanager
    def awake(self, spec: ServerSpec) -> Iterator[RunningServer]:
        """Wake a server while all others are paused; add its name and log to errors."""
        server = self._servers[spec]
        server.signal_all(signal.SIGCONT)
        try:
            yield server
        except LoadTestError as error:  # keep the class, which callers distinguish
            log = f"its log ends with:\n{server.log_tail()}"
            raise type(error)(f"{server.name}: {error}; {log}") from error
        finally:
            if spec.sleeps:
                server.signal_all(signal.SIGSTOP)

    def stop(self, spec: ServerSpec) -> None:
        _stop(self._servers.pop(spec))


def _start(spec: ServerSpec) -> RunningServer:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    environment = {name: value.replace("{port}", str(port)) for name, value in spec.environment}
    log = tempfile.TemporaryFile()  # noqa: SIM115  # closed when the server is stopped
    with pinned(spec.core):
        process = subprocess.Popen(  # nosec B603 # commands are written in this package
            [argument.replace("{port}", str(port)) for argument in spec.command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
        )
    return RunningServer(spec.name, port, process, log)


def _wait_ready(server: RunningServer, path: str) -> None:
    give_up_at = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < give_up_at:
        if server.process.poll() is not None:
            raise ServerError(
                f"{server.name} ended with exit code {server.process.returncode} "
                f"before it was ready; its log ends with:\n{server.log_tail()}"
            )
        with contextlib.suppress(TargetError):
            if exchange(server.url, "GET", path).status == 200:
                return
        time.sleep(POLL_S)
    raise ServerError(
        f"{server.name} was not ready within {READY_WITHIN_S:g} s; "
        f"its log ends with:\n{server.log_tail()}"
    )


def _stop(server: RunningServer) -> None:
    server.signal_all(signal.SIGCONT)
    server.process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.process.wait(STOP_WITHIN_S)
    server.signal_all(signal.SIGKILL)  # and any processes left behind
    server.process.wait()
    server.log.close()
