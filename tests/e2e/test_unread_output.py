"""Real servers whose output nobody reads, or that have none."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.forking import start
from tests.e2e.server import PLAIN, Process, Server, free_port, post_on_the_wire, wait_ready

SLOW = "tests.e2e.slow_app"
SMALL = 4096  # bytes of a pipe
FAILS = {"input": [1000, 0]}  # with an error in the log


@contextlib.contextmanager
def started(
    models: Path, log: Path, output: int, module: str = "app", closed: str = "", **settings: str
) -> Iterator[Server]:
    """A ready server with an output of its own; `closed` is how a shell closes its streams."""
    log.touch()
    port = free_port()
    given = {"host": "127.0.0.1", "port": str(port), "model_dir": str(models), "devices": "cpu"}
    given["log_format"] = "json"
    variables = {f"TORCHLANE_{name.upper()}": value for name, value in (given | settings).items()}
    variables |= {k: v for k, v in os.environ.items() if not k.startswith("TORCHLANE_")}
    process: Process
    if closed:
        command = ["sh", "-c", f'exec "$0" -P -m {module} {closed}', sys.executable]
        process = subprocess.Popen(command, env=variables)
    else:
        imported = "server" if settings.get("workers") == "1" else "libraries"
        process = start(imported, ("-m", module), variables, (0, output, output))
    server = Server(process, port, log)
    try:
        wait_ready(server)
        yield server
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def small_pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, SMALL)
    try:
        yield ends
    finally:
        for end in ends:
            with contextlib.suppress(OSError):
                os.close(end)


def is_served(server: Server) -> None:
    """Answers come, and SIGTERM ends the process."""
    assert httpx.get(f"{server.url}/health/live", verify=PLAIN).status_code == 200
    answer = httpx.post(f"{server.url}/predict", json={"input": [1, 2]}, verify=PLAIN)
    assert answer.json()["prediction"]["outputs"]["y"] == [2, 4]
    assert server.metric("torchlane_log_lines_dropped_total") >= 0
    server.signal()
    assert server.exit_code() == 0


def test_full_pipe_stops_nothing(models: Path, log: Path) -> None:
    with (
        small_pipe() as (reading, writing),
        started(models, log, writing, workers="2", log_level="debug") as server,
        httpx.Client(verify=PLAIN) as client,
    ):
        for _ in range(100):
            assert client.post(f"{server.url}/predict", json=FAILS).status_code == 500
        waiting = fcntl.ioctl(reading, 0x541B, bytes(4))  # FIONREAD
        assert int.from_bytes(waiting, sys.byteorder) > SMALL // 2
        is_served(server)


def test_hanging_process_ends_although_its_pipe_is_full(models: Path, log: Path) -> None:
    quick = {"hang_s": "3", "request_timeout_ms": "3000", "workers": "1"}
    with small_pipe() as (_, writing), started(models, log, writing, SLOW, **quick) as server:
        os.set_blocking(writing, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writing, b".")
        with post_on_the_wire(server.port, b'{"input": [-1, 0]}'):
            assert server.exit_code() == signal.SIGALRM


@pytest.mark.soak
def test_closed_streams_stop_nothing(models: Path, log: Path) -> None:
    with started(models, log, -1, closed="2>&- >&- <&-") as server:
        is_served(server)


@pytest.mark.soak
def test_output_that_fails_stops_nothing(models: Path, log: Path) -> None:
    with (
        open("/dev/full", "wb") as full,
        started(models, log, full.fileno(), workers="2") as server,
    ):
        server.wait_for_metric("torchlane_log_lines_dropped_total", lambda lines: lines > 3)
        is_served(server)


@pytest.mark.parametrize(("command", "closed"), [("app", "2>&- >&-"), ("app.bulk", "2>/dev/full")])
def test_wrong_usage_has_its_exit_code_without_an_output(command: str, closed: str) -> None:
    line = f'exec "$0" -P -m {command} --port none {closed}'
    done = subprocess.run(["sh", "-c", line, sys.executable], check=False, timeout=60)
    assert done.returncode == 2
