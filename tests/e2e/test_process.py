"""A real process: start, rejections, drain and end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.server import Server, post_on_the_wire, running, start_process

SLOW = "tests.e2e.slow_app"
ACCEPTED = "torchlane_cache_lookups_total"  # every accepted item is looked up once


def test_the_server_starts_predicts_and_exits_with_zero(models: Path, log: Path) -> None:
    with running(models, log, "app.__main__", log_format="json") as server:
        answer = httpx.post(f"{server.url}/predict", json={"input": [1, 2]})
        assert answer.json()["prediction"]["outputs"]["y"] == [2, 4]
        server.signal(signal.SIGINT)
        assert server.exit_code() == 0
        events = [json.loads(line)["event"] for line in server.log.splitlines()]
        assert events.index("draining") < events.index("stopped")


@pytest.mark.soak  # measures
@pytest.mark.skipif(sys.platform != "linux", reason="counts wake-ups by Linux's /proc")
def test_an_idle_server_rarely_wakes(models: Path, log: Path) -> None:
    def woken(pid: int) -> int:
        """How often any thread of a process has gone to sleep."""
        lines = [
            line
            for status in Path(f"/proc/{pid}/task").glob("*/status")
            for line in status.read_text().splitlines()
        ]
        return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt"))

    with running(models, log) as server:
        assert httpx.post(f"{server.url}/predict", json={"input": [1, 2]}).status_code == 200
        time.sleep(1)  # what the start and the request have begun
        before, began = woken(server.process.pid), time.monotonic()
        time.sleep(4)
        wakes = woken(server.process.pid) - before
        # One a second, and some ten for each look at the repository. uvicorn's loop wakes 11 times.
        assert 0 < wakes <= 5 * (time.monotonic() - began) + 10


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"port": "none"}, "TORCHLANE_PORT"),
        ({"devices": "cuda:99"}, "cuda:99"),
    ],
)
def test_an_invalid_setting_is_named_and_nothing_starts(
    log: Path, settings: dict[str, str], says: str
) -> None:
    with start_process(log, **settings) as process:
        assert process.wait(60) == 2
    assert says in log.read_text()
    assert "Traceback" not in log.read_text()


def test_a_pipe_instead_of_a_file_refuses_the_start(log: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with start_process(log, api_keys_file=str(tmp_path / "pipe")) as process:
        assert process.wait(60) == 2
    assert "TORCHLANE_API_KEYS_FILE=" in log.read_text()
    assert "not a regular file but a pipe" in log.read_text()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_busy_port_is_reported_and_nothing_starts(models: Path, log: Path, workers: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = {"port": str(taken.getsockname()[1]), "workers": workers}
        with start_process(log, **settings, model_dir=str(models)) as process:
            assert process.wait(60) == 1
    assert f"is port {settings['port']} in use?" in log.read_text()
    assert "worker_started" not in log.read_text()
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize("host", ["nohost.invalid", "192.0.2.1"])
def test_a_host_that_is_not_this_machine(models: Path, log: Path, host: str) -> None:
    with start_process(log, host=host, workers="2", model_dir=str(models)) as process:
        assert process.wait(60) == 1
    assert f"cannot listen on {host}; --host (TORCHLANE_HOST) must name" in log.read_text()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_wrong_file_is_told_once(models: Path, log: Path, workers: str) -> None:
    settings = {"models_file": "nope.toml", "workers": workers}
    with start_process(log, **settings, model_dir=str(models)) as process:
        assert process.wait(60) == 2
    assert log.read_text().count("torchlane: TORCHLANE_MODELS_FILE=nope.toml: No such file") == 1


def test_sigterm_answers_accepted_requests_and_rejects_the_rest(models: Path, log: Path) -> None:
    async def scene(server: Server) -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
            await asyncio.gather(*(client.get("/health/live") for _ in range(20)))  # connect
            posts = [
                asyncio.create_task(client.post("/predict", json={"input": [n, 2]}))
                for n in range(2, 12)
            ]
            await asyncio.to_thread(server.wait_for_metric, ACCEPTED, lambda n: n >= 10)
            server.signal()
            await asyncio.sleep(0.1)
            late = await client.post("/predict", json={"input": [99, 2]})
            assert (late.status_code, late.json()["code"]) == (503, "shutting_down")
            assert late.headers["connection"] == "close"
            with pytest.raises(httpx.ConnectError):
                async with httpx.AsyncClient(base_url=server.url) as fresh:
                    await fresh.get("/health/live")
            for n, answer in zip(range(2, 12), await asyncio.gather(*posts), strict=True):
                assert answer.json()["prediction"]["outputs"]["y"] == [2 * n, 4]

    with running(models, log, SLOW, max_batch_size="2") as server:
        asyncio.run(scene(server))
        assert server.exit_code() == 0


def test_a_second_signal_stops_the_server_immediately(models: Path, log: Path, hung: None) -> None:
    with (
        running(models, log, SLOW, hang_s="300", drain_s="600") as server,
        _waiting(server.port, [10]),
    ):
        server.wait_for_metric(ACCEPTED, lambda n: n >= 1)
        server.signal()
        server.wait_for_log("draining")
        assert server.process.poll() is None
        server.signal()
        assert server.exit_code() == 128 + signal.SIGTERM  # 0 after a drain


def test_a_stop_answers_a_stalled_upload_with_503(models: Path, log: Path) -> None:
    with (
        running(models, log, drain_s="1") as server,
        _half_sent(server.port, b"20000") as connection,
    ):
        time.sleep(0.3)
        server.signal()
        answer = connection.makefile("rb").read()
        assert b"503" in answer.splitlines()[0]
        assert b"shutting_down" in answer
        assert server.exit_code() == 0
        assert "Traceback" not in server.log


def test_a_slow_reader_gets_its_answer_during_shutdown(models: Path, log: Path) -> None:
    rows = ", ".join(f"[{number / 1000}, 2]" for number in range(60_000))
    body = b'{"inputs": [%s]}' % rows.encode()
    limits = {"max_items": "100000", "queue_limit_items": "100000", "max_batch_size": "4096"}
    with (
        running(models, log, drain_s="20", **limits) as server,
        post_on_the_wire(server.port, body, "/batch-predict") as connection,
    ):
        first = connection.recv(1000)  # it has begun to answer, and we are slow to read on
        server.signal()
        time.sleep(0.5)
        answer = first + connection.makefile("rb").read()
        head, _, content = answer.partition(b"\r\n\r\n")
        assert b"200 OK" in head
        assert len(json.loads(content)["predictions"]) == 60_000
        assert server.exit_code() == 0
        assert "Traceback" not in server.log
        assert "error" not in server.log.replace("uvicorn.error", "")


@pytest.fixture
def hung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forwards of the slow application never end."""
    monkeypatch.setenv("SLOW_UNTIL", str(tmp_path / "never"))


def test_a_hung_backend_does_not_delay_the_stop(models: Path, log: Path, hung: None) -> None:
    with (
        running(models, log, SLOW, drain_s="2") as server,
        _waiting(server.port, [10]) as connections,
    ):
        server.wait_for_metric("torchlane_batch_size_count", lambda n: n >= 1)
        server.signal()
        assert b"shutting_down" in connections[0].makefile("rb").read()
        assert server.exit_code() == 0


@contextlib.contextmanager
def _half_sent(port: int, timeout_ms: bytes) -> Iterator[socket.socket]:
    """A request whose body is never complete."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(
            b"POST /predict HTTP/1.1\r\nHost: loopback\r\nContent-Type: application/json\r\n"
            b"X-Torchlane-Timeout-Ms: " + timeout_ms + b"\r\nContent-Length: 18\r\n\r\n{"
        )
        yield connection


@contextlib.contextmanager
def _waiting(port: int, numbers: Iterable[int]) -> Iterator[list[socket.socket]]:
    """Requests that wait for their answers, one connection each."""
    with contextlib.ExitStack() as stack:
        payloads = (b'{"input": [%d, 5]}' % number for number in numbers)
        yield [stack.enter_context(post_on_the_wire(port, each)) for each in payloads]
