"""A real `python -m app` process on a free port of the loopback interface."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.forking import MODULES, Forked, import_path, start

START_LIMIT_S = 150.0  # of real processes on a busy machine
# For clients of servers that do not encrypt: httpx would read all certificates of the machine for
# each client, which takes longer than many requests.
PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


Process = subprocess.Popen[bytes] | Forked


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Server:
    """A running server; `log` is its stderr."""

    process: Process
    port: int
    log_file: Path
    host: str = "127.0.0.1"

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def events(self, name: str) -> list[dict[str, Any]]:
        """What was logged under a name."""
        lines = (json.loads(each) for each in self.log.splitlines() if each.startswith("{"))
        return [line for line in lines if line["event"] == name]

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def exit_code(self, limit_s: float = 60.0) -> int:
        return self.process.wait(limit_s)

    def scrape(self) -> list[str]:
        """The lines of /metrics."""
        return httpx.get(f"{self.url}/metrics", verify=PLAIN).text.splitlines()

    def metric(self, name: str) -> float:
        """The sum over all series of a metric."""
        lines = self.scrape()
        found = [line.rpartition(" ") for line in lines]
        values = [float(value) for series, _, value in found if series.partition("{")[0] == name]
        declared = f"# TYPE {name.removesuffix('_total').removesuffix('_count')}"
        if not values and not any(line.startswith(declared) for line in lines):
            raise KeyError(f"there is no metric {name}")
        return sum(values)

    def wait_for_log(self, pattern: str) -> None:
        """Return once the log contains something of this form."""
        deadline = time.monotonic() + START_LIMIT_S
        while not re.search(pattern, self.log):
            assert time.monotonic() < deadline, self.log
            time.sleep(0.02)

    def wait_for_metric(self, name: str, wanted: Callable[[float], bool]) -> None:
        """Return once a metric is as wanted; what was sent may not have been read yet."""
        deadline = time.monotonic() + 60
        while not wanted(self.metric(name)):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{name} stays at {self.metric(name)}")
            time.sleep(0.01)


@contextlib.contextmanager
def start_process(log_file: Path, module: str = "app", **settings: str) -> Iterator[Process]:
    """A process of `python -m MODULE` with TORCHLANE_ settings, and no other ones.

    It is forked from a process that has imported what takes long; `app.__main__` never is. At the
    end it is killed by its process id if it still runs.
    """
    process = _start(log_file, module, settings)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _start(log_file: Path, module: str, settings: dict[str, str]) -> Process:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TORCHLANE_")}
    # Else each start would measure the machine, and there were as many processes as pay. Logs are
    # those of production, with every event.
    settings = {"devices": "cpu", "workers": "1", "log_format": "json"} | settings
    settings.setdefault("source_cache", f"{log_file}-cache")  # nothing is known of earlier loads
    environment |= import_path()
    environment |= {f"TORCHLANE_{name.upper()}": value for name, value in settings.items()}
    log_file.write_bytes(b"")
    if module in MODULES and settings["workers"] != "auto":
        imported = "server" if settings["workers"] == "1" else "libraries"
        with log_file.open("ab") as log, open(os.devnull) as nothing:
            streams = [each.fileno() for each in (nothing, log, log)]
            return start(imported, ("-m", module), environment, streams)
    with log_file.open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", module], env=environment, stdout=log, stderr=log
        )


@contextlib.contextmanager
def running(
    model_dir: Path | str, log_file: Path, module: str = "app", **settings: str
) -> Iterator[Server]:
    """A ready server, in a process of `start_process`."""
    settings = {
        "host": "127.0.0.1",
        "port": str(free_port()),
        "model_dir": str(model_dir),
    } | settings
    with start_process(log_file, module, **settings) as process:
        server = Server(process, int(settings["port"]), log_file, settings["host"])
        wait_ready(server)
        if (workers := settings.get("workers", "1")) not in ("1", "auto"):
            server.wait_for_log(
                rf'"workers": {workers}|{workers} workers\)'
            )  # not only one of them
        yield server


def resident_bytes(pid: int) -> int:
    """The physical memory that a process holds; on Linux only."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def post_on_the_wire(port: int, payload: bytes, path: str = "/predict") -> socket.socket:
    """Send a JSON request and return its connection without reading the answer."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: loopback\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(payload)}\r\n\r\n"
    )
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    connection.sendall(head.encode() + payload)
    return connection


def wait_ready(server: Server) -> None:
    """Return once a server is ready.

    Raises:
        RuntimeError: if it does not become ready; with its log.
    """
    wait_for_readiness(server, 200)


def wait_for_readiness(server: Server, status: int) -> httpx.Response:
    """What `/health/ready` answers once the server listens and the answer has this status.

    Raises:
        RuntimeError: if it never has; with the server's log.
    """
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and server.process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            answer = httpx.get(f"{server.url}/health/ready", verify=PLAIN)
            if answer.status_code == status:
                return answer
        time.sleep(0.05)
    raise RuntimeError(f"/health/ready never answered {status}:\n{server.log}")
