"""The parent of workers, with fast workers that load nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.processes.supervisor import Supervisor, WorkersPlan
from app.processes.worker import Shared

# Sends its place to every client; its environment says what else it does.
WORKER = """
import os, signal, socket, sys, time
from pathlib import Path
from app.processes.worker import *
place = Place.parse(sys.argv[2])
obey_parent_alone(place.parent)
folder = Path(os.environ["WORKERS_FOLDER"])
behaviour = os.environ.get(f"WORKER_{place.index}", "")
if behaviour.startswith("exit"):
    time.sleep(0.2)
    sys.exit(int(behaviour[4:]))
if (folder / f"broken_{place.index}").exists():
    sys.exit(3)
worker = Worker(place)
worker.channel.setblocking(True)
worker.tell(LISTENS)
if behaviour == "fails first":
    worker.tell(NOT_READY)
while behaviour in ("loads", "fails first") and not (folder / "loaded").exists():
    time.sleep(0.01)
worker.tell(READY)
if behaviour == "full":
    worker.has_descriptors(False)
(folder / f"ready_{place.index}").touch()
while True:
    data, descriptors, _, _ = socket.recv_fds(worker.channel, 1, 8)
    for each in descriptors:
        connection = socket.socket(fileno=each)
        connection.sendall(str(place.index).encode())
        if behaviour == "closes":
            connection.close()
            worker.connection_closed()
        else:
            connection.detach()
    if data == ALL_LOADED:
        (folder / f"told_{place.index}").touch()
    if data in (b"", DRAIN):
        if behaviour == "stays":
            time.sleep(30)
        sys.exit(0)
"""


EMPTY: Mapping[str, str] = {}


class Running:
    """A running supervisor, and its address."""

    def __init__(self, port: int, ended: asyncio.Task[int]) -> None:
        self.port = port
        self.ended = ended
        self.connections: list[socket.socket] = []
        self._strangers = all_children()

    async def connect(self) -> str:
        """Which worker got a new connection, which stays open here."""
        return await asyncio.to_thread(self._connect)

    def _connect(self) -> str:
        deadline = time.monotonic() + 60
        while True:
            try:
                connection = socket.create_connection(("127.0.0.1", self.port), timeout=60)
                break
            except ConnectionRefusedError:  # no worker is up yet
                assert time.monotonic() < deadline
                time.sleep(0.02)
        self.connections.append(connection)
        return connection.recv(1).decode()

    def children(self) -> list[int]:
        """The supervisor's child processes that were not waited for, oldest first."""
        return [each for each in all_children() if each not in self._strangers]

    async def stop(self) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return await asyncio.wait_for(self.ended, 60)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("prometheus_client.values.ValueClass", None)  # restored when it is over
    return tmp_path


@contextlib.asynccontextmanager
async def supervising(
    folder: Path, workers: int, drain_s: float = 5.0, behaviour: Mapping[str, str] = EMPTY
) -> AsyncIterator[Running]:
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    environment = {**os.environ, **behaviour, "PYTHONPATH": str(Path.cwd())}
    environment["WORKERS_FOLDER"] = str(folder)
    shared = Shared.create(workers)
    plan = WorkersPlan([sys.executable, "-c", WORKER], environment, workers, drain_s, shared)
    port = bound.getsockname()[1]
    running = Running(port, asyncio.create_task(Supervisor(bound, plan, lambda: 0).run()))
    try:
        yield running
    finally:
        running.ended.cancel()
        await asyncio.gather(running.ended, return_exceptions=True)
        bound.close()
        shared.close()
        for each in running.connections:
            each.close()


def said(logs: Sequence[MutableMapping[str, Any]], name: str) -> list[MutableMapping[str, Any]]:
    """What was logged under a name."""
    return [log for log in logs if log["event"] == name]


async def eventually(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.02)


async def all_are_up(running: Running, workers: int) -> None:
    """Connect until every worker was reached, then close the connections."""
    seen: set[str] = set()
    async with asyncio.timeout(60):
        while len(seen) < workers:
            seen.add(await running.connect())


async def test_workers_are_notified_when_all_have_loaded(folder: Path) -> None:
    async with supervising(folder, 2, behaviour={"WORKER_1": "loads"}) as running:
        await eventually((folder / "ready_0").exists)
        for _ in range(3):
            assert await running.connect() == "0"  # the other one has nothing to answer with
        assert not (folder / "told_0").exists()
        (folder / "loaded").touch()
        await eventually(lambda: (folder / "told_0").exists() and (folder / "told_1").exists())
        assert await running.stop() == 0


async def test_a_server_is_announced_once_all_workers_are_ready(folder: Path) -> None:
    with capture_logs() as logs:
        async with supervising(folder, 2, behaviour={"WORKER_1": "fails first"}) as running:
            await eventually(lambda: [log["workers"] for log in said(logs, "not_ready")] == [[1]])
            assert said(logs, "ready") == []
            (folder / "loaded").touch()
            await eventually(lambda: [log["workers"] for log in said(logs, "ready")] == [2])
            assert await running.stop() == 0


async def test_dead_worker_is_replaced(folder: Path) -> None:
    async with supervising(folder, 2) as running:
        await all_are_up(running, 2)
        victim = running.children()[0]
        os.kill(victim, signal.SIGKILL)
        await eventually(lambda: victim not in running.children() and len(running.children()) == 2)
        assert await running.stop() == 0
    assert running.children() == []


@pytest.mark.parametrize(("exit_code", "wanted"), [("2", 2), ("70", 70), ("0", 1)])
async def test_failed_workers_end_server_with_their_code(
    folder: Path, exit_code: str, wanted: int
) -> None:
    behaviour = {f"WORKER_{n}": f"exit{exit_code}" for n in range(2)}
    async with supervising(folder, 2, behaviour=behaviour) as running:
        assert await asyncio.wait_for(running.ended, 60) == wanted


async def test_failing_worker_is_retried_while_another_serves(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.processes.supervisor.RESTART_DELAYS_S", (0.0, 0.1))
    async with supervising(folder, 2) as running:
        await all_are_up(running, 2)
        (folder / "broken_1").touch()
        os.kill(running.children()[1], signal.SIGKILL)
        tried: set[int] = set()
        async with asyncio.timeout(60):
            while len(tried) < 5:
                tried.update(running.children())
                await asyncio.sleep(0.02)
        assert not running.ended.done()
        assert await running.stop() == 0


async def test_second_signal_or_spent_budget_ends_workers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.processes.supervisor.CLOSE_S", 0.1)
    async with supervising(folder, 1, drain_s=0.3, behaviour={"WORKER_0": "stays"}) as running:
        assert await running.connect() == "0"
        assert await running.stop() == 1
    assert running.children() == []
    async with supervising(folder, 1, drain_s=60, behaviour={"WORKER_0": "stays"}) as running:
        assert await running.connect() == "0"
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.2)
        assert await running.stop() == 128 + signal.SIGTERM
    assert running.children() == []


async def test_connections_wait_until_a_worker_can_take_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.processes.supervisor.RESTART_DELAYS_S", (0.5,))
    async with supervising(folder, 1) as running:
        assert await running.connect() == "0"
        os.kill(running.children()[0], signal.SIGKILL)
        await eventually(lambda: running.children() == [])
        assert await running.connect() == "0"  # by the next one in its place
        assert await running.stop() == 0


async def test_a_worker_that_cannot_be_started_is_retried(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.processes.supervisor.RESTART_DELAYS_S", (0.0, 0.05))
    started: list[float] = []

    def exhausted(*_: object, **__: object) -> None:
        started.append(time.monotonic())
        raise BlockingIOError(11, "Resource temporarily unavailable")

    async with supervising(folder, 2) as running:
        await all_are_up(running, 2)
        with monkeypatch.context() as during:
            during.setattr(subprocess, "Popen", exhausted)
            os.kill(running.children()[0], signal.SIGKILL)
            await eventually(lambda: len(started) >= 3)
        await eventually(lambda: len(running.children()) == 2)
        assert await running.stop() == 0


# A parent that is forked here must not be pytest's process, which has threads.
FORKING = """
import asyncio, contextlib, os, signal, socket, sys, time
from pathlib import Path
from app.processes.supervisor import Supervisor, WorkersPlan
from app.processes.worker import Shared, Worker, obey_parent_alone
folder = Path(sys.argv[1])
def serve(place):
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)
    obey_parent_alone(place.parent)
    worker = Worker(place)
    (folder / f"up_{place.index}").touch()
    while True:
        time.sleep(1)
with contextlib.ExitStack() as stack:
    stack.callback(print, "unwound")
    bound = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    supervisor = Supervisor(bound, WorkersPlan([], {}, 2, 5.0, Shared.create(2)), lambda: 0)
    supervisor.fork(serve)
    deadline = time.monotonic() + 60
    while len(list(folder.glob("up_*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    print("up", len(list(folder.glob("up_*"))))
    os.kill(os.getpid(), signal.SIGTERM)
    print("code", asyncio.run(supervisor.run()))
"""


def test_early_signals_are_handled_later(folder: Path) -> None:
    command = [sys.executable, "-c", FORKING, str(folder)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("up", "code", "unw"))]
    assert lines[:2] == ["up 2", "code 0"], done.stdout + done.stderr
    assert len(lines) == 3  # the parent's stack was unwound once
    assert "Traceback" not in done.stderr + done.stdout


def all_children() -> list[int]:
    """Child processes of this one, including other tests', that were not waited for."""
    found = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return [int(each) for each in found]
