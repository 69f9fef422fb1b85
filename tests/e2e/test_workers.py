"""Several processes behind one port: how they share the work, what is counted, how they end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import torch
from torch import nn

from tests.artifacts import write_artifact
from tests.e2e.server import (
    PLAIN,
    Server,
    free_port,
    post_on_the_wire,
    resident_bytes,
    running,
    start_process,
)

SLOW = "tests.e2e.slow_app"
REQUESTS = "torchlane_requests_total"
COMPUTED = "torchlane_items_computed_total"
IN_FLIGHT = "torchlane_requests_in_flight"
CONNECTIONS = 12


@contextlib.contextmanager
def two_workers(models: Path, log: Path, module: str = "app", **settings: str) -> Iterator[Server]:
    """A server with two workers; none of its processes is left behind."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as environment:
        environment.setenv("TMPDIR", folder)  # a parent that is killed leaves something there
        try:
            with running(models, log, module, workers="2", log_format="json", **settings) as server:
                yield server
        finally:
            until(lambda: not any(map(alive, started(log))), "the workers outlive their parent")


def events(log: Path) -> list[dict[str, object]]:
    lines = (json.loads(line) for line in log.read_text().splitlines() if line.startswith("{"))
    return [line for line in lines if line.get("logger") == "app.processes.supervisor"]


def started(log: Path) -> list[int]:
    """The process ids of all workers so far."""
    return [int(str(e["pid"])) for e in events(log) if e["event"] == "worker_started"]


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def until(true: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)


def sockets(pid: int) -> int:
    """How many sockets a process has open."""
    count = 0
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            count += os.readlink(each).startswith("socket:")
    return count


def series(server: Server, name: str) -> list[str]:
    return [line for line in server.scrape() if line.startswith(name)]


def status(server: Server, number: int) -> int:
    """Of an answer that does not take long."""
    asked = {"input": [1, number]}
    return httpx.post(f"{server.url}/predict", json=asked, verify=PLAIN).status_code


def client_of(server: Server) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.url, timeout=30, verify=PLAIN)


def test_connections_are_balanced_and_counters_add_up(models: Path, log: Path) -> None:
    async def ask(server: Server, at_rest: int) -> None:
        clients = [client_of(server) for _ in range(CONNECTIONS)]
        async with contextlib.AsyncExitStack() as stack:
            for client in clients:
                await stack.enter_async_context(client)
            for wave in range(5):
                posts = (
                    c.post("/predict", json={"input": [wave, n]}) for n, c in enumerate(clients)
                )
                for n, answer in enumerate(await asyncio.gather(*posts)):
                    assert answer.json()["prediction"]["outputs"]["y"] == [2 * wave, 2 * n]
            wrong = await clients[0].post("/predict", json={"input": "wrong"})
            assert wrong.status_code == 422
            assert [sockets(pid) - at_rest for pid in started(log)] == [CONNECTIONS / 2] * 2

    with two_workers(models, log, queue_limit_items="100") as server:
        pids = started(log)
        until(lambda: len({sockets(pid) for pid in pids}) == 1, "a connection is left")
        asyncio.run(ask(server, sockets(pids[0])))
        server.wait_for_metric(REQUESTS, lambda n: n == 5 * CONNECTIONS + 1)  # the other writes
        server.wait_for_metric(COMPUTED, lambda n: n == 5 * CONNECTIONS)  # once a second
        for _ in range(4):  # whichever answers the scrape
            assert server.metric(REQUESTS) == 5 * CONNECTIONS + 1
            assert server.metric(COMPUTED) == 5 * CONNECTIONS
            assert server.metric("torchlane_request_seconds_count") == 5 * CONNECTIONS + 1
            assert server.metric("torchlane_cache_entries") == 5 * CONNECTIONS
            assert server.metric("torchlane_queue_limit_items") == 200
            assert server.metric("torchlane_cache_limit_bytes") == 256 * 1024 * 1024
            assert server.metric("torchlane_bodies_limit_bytes") == 1 << 30
            assert server.metric("torchlane_queue_limit_bytes") == 1 << 30
            assert server.metric("torchlane_model_info") == 1
            assert server.metric("torchlane_model_replicas") == 2
            assert server.metric("torchlane_ready") == 1
            assert len(series(server, "torchlane_replica_ready{")) == 2
        memory = sum(resident_bytes(pid) for pid in [*started(log), server.process.pid])
        assert server.metric("process_resident_memory_bytes") == pytest.approx(memory, rel=0.2)
        assert [e["event"] for e in events(log)][-1] == "ready"
        server.signal(signal.SIGINT)
        assert server.exit_code() == 0
        assert not list(Path(os.environ["TMPDIR"]).iterdir())


def test_a_new_connection_goes_to_the_worker_that_has_fewest(models: Path, log: Path) -> None:
    with two_workers(models, log, head_timeout_s="60") as server, contextlib.ExitStack() as stack:
        pids = started(log)
        until(lambda: len({sockets(pid) for pid in pids}) == 1, "a connection is left")
        at_rest = sockets(pids[0])

        def connections() -> list[int]:
            return [sockets(pid) - at_rest for pid in pids]

        def connect() -> socket.socket:
            before = sum(connections())
            made = stack.enter_context(socket.create_connection((server.host, server.port)))
            until(lambda: sum(connections()) > before, "no worker gets it")
            return made

        made = [connect() for _ in range(8)]
        assert connections() == [4, 4]
        for each in made[::2]:  # those of one worker
            each.close()
        until(lambda: 0 in connections(), "they are not closed")
        assert sorted(connections()) == [0, 4]
        for _ in range(4):
            connect()
        assert connections() == [4, 4]


def test_no_worker_is_ready_while_another_loads(models: Path, log: Path) -> None:
    def answers(client: httpx.Client) -> bool:
        with contextlib.suppress(httpx.ConnectError):
            return client.post("/predict", json={"input": [1, 2]}).status_code == 200
        return False

    port = free_port()
    settings = {"model_dir": str(models), "port": str(port), "workers": "2"}
    with start_process(log, **settings) as process:
        until(lambda: len(started(log)) == 2, "the workers do not start")
        late = started(log)[1]
        os.kill(late, signal.SIGSTOP)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", verify=PLAIN) as client:
            until(lambda: answers(client), "the first worker does not load")
            early = client.get("/health/ready")
            os.kill(late, signal.SIGCONT)
            assert early.status_code == 503
            assert early.json()["reasons"] == ["another worker is still loading its models"]
            until(lambda: client.get("/health/ready").is_success, "it does not become ready")
        process.terminate()
        assert process.wait(60) == 0


def first_bytes(connection: socket.socket) -> bytes:
    """Of an answer; nothing if the connection was lost."""
    with connection:
        try:
            return connection.recv(65536)
        except ConnectionResetError:
            return b""


def test_killed_workers_are_replaced_and_leave_no_orphans(
    models: Path, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    monkeypatch.setenv("SLOW_UNTIL", str(gate))
    with two_workers(models, log, SLOW) as server:
        first, _ = started(log)
        for n in range(8):
            assert status(server, n) == 200
        waiting = [post_on_the_wire(server.port, b'{"input": [%d, 2]}' % n) for n in range(2, 8)]
        server.wait_for_metric(IN_FLIGHT, lambda n: n == 6)
        server.wait_for_metric(REQUESTS, lambda n: n == 8)
        counted = server.metric(REQUESTS)
        os.kill(first, signal.SIGKILL)
        until(lambda: "worker_died" in log.read_text(), "its death is not noticed")
        until(lambda: len(series(server, "torchlane_replica_ready{")) == 1, "it still counts")
        left = server.metric(IN_FLIGHT)  # its own are gone with it
        assert 0 < left < 6
        assert server.metric(REQUESTS) == counted
        gate.touch()
        for n in range(8):  # no connection goes to the loading worker
            assert status(server, n) == 200
        assert sum(b"200 OK" in first_bytes(each) for each in waiting) == left
        counted += 8 + left
        server.wait_for_metric(REQUESTS, lambda n: n == counted)
        until(lambda: len(series(server, "torchlane_replica_ready{")) == 2, "it is not replaced")
        assert len(started(log)) == 3
        until(lambda: "worker_loaded" in log.read_text(), "the new one does not load")
        assert server.metric(REQUESTS) == counted
        server.process.kill()
        until(lambda: not any(map(alive, started(log))), "orphans")


def test_a_replaced_worker_serves_only_what_its_siblings_serve(tmp_path: Path, log: Path) -> None:
    write_artifact(tmp_path / "models", "other")  # with which each worker is ready
    folder = write_artifact(tmp_path / "models", "double")
    kept = shutil.copytree(folder, tmp_path / "kept")

    def outcomes() -> set[object]:
        """The answers to one item, each over a new connection."""
        found: set[object] = set()
        for n in range(16):
            asked = {"input": [1, n]}
            url = f"{server.url}/models/double/predict"
            answer = httpx.post(url, json=asked, verify=PLAIN).json()
            found.add(answer["prediction"]["outputs"]["y"][0] if "code" not in answer else None)
        return found

    with two_workers(tmp_path / "models", log, reload_s="0.1", cache_bytes="0") as server:
        first, second = started(log)
        assert outcomes() == {2}
        shutil.rmtree(folder)
        write_artifact(tmp_path / "models", "double", module=Tripled())
        server.wait_for_metric("torchlane_versions_changed", lambda versions: versions == 1)
        os.kill(first, signal.SIGKILL)
        until(lambda: "worker_loaded" in server.log, "it is not replaced")
        assert outcomes() == {2}  # connections go to the worker that can answer
        problem = httpx.get(f"{server.url}/models/double", verify=PLAIN).json()["versions"][0]
        assert "its files changed after it was loaded" in problem["problem"]
        os.kill(second, signal.SIGKILL)
        until(lambda: server.log.count("worker_loaded") == 2, "it is not replaced")
        assert outcomes() == {None}  # no crash changes what a version answers
        shutil.rmtree(folder)
        kept.rename(folder)
        until(lambda: outcomes() == {2}, "it does not recover")
        server.wait_for_metric("torchlane_model_replicas", lambda replicas: replicas == 4)
        server.signal()
        assert server.exit_code() == 0


class Tripled(nn.Module):
    """Other content for the version of `Double`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3


def test_signals_during_worker_startup_stop_everything(
    models: Path, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    settings = {"model_dir": str(models), "port": str(free_port()), "workers": "2"}
    with start_process(log, **settings) as process:
        until(lambda: len(started(log)) == 2, "the workers do not start")
        for each in (*started(log), process.pid):  # as Ctrl-C and supervisors do
            os.kill(each, signal.SIGINT)
        assert process.wait(60) == 0
    until(lambda: not any(map(alive, started(log))), "the workers outlive their parent")
    assert "worker_failed" not in log.read_text()
    assert "Traceback" not in log.read_text()
    assert not list((tmp_path / "scratch").iterdir())


def test_sigterm_under_load_loses_nothing(
    models: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOW_S", "0.05")

    async def callers(server: Server) -> list[int]:
        """Send requests on many connections until each is closed; returns the answers of each."""
        numbers = itertools.count(2)
        answered = [0] * CONNECTIONS

        async def caller(index: int) -> None:
            async with client_of(server) as client:
                while True:
                    n = next(numbers)
                    answer = await client.post("/predict", json={"input": [n, 2]})
                    if answer.status_code == 503:
                        assert answer.json()["code"] == "shutting_down"
                        return
                    assert answer.json()["prediction"]["outputs"]["y"] == [2 * n, 4]
                    answered[index] += 1

        async with asyncio.TaskGroup() as group:
            for index in range(CONNECTIONS):
                group.create_task(caller(index))
            while min(answered) == 0:
                await asyncio.sleep(0.01)
            server.signal()
        return answered

    with two_workers(models, log, SLOW, max_batch_size="4") as server:
        answered = asyncio.run(callers(server))
        assert min(answered) > 0
        assert server.exit_code() == 0
        assert "Traceback" not in server.log
        assert len(started(log)) == 2  # no worker was started while it stopped
