"""More connections than the descriptors of a real process allow."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path

from tests.e2e.forking import import_path, start
from tests.e2e.server import Server, free_port, wait_ready
from tests.integration.wire import request

DESCRIPTORS, MOST, NEW = 400, 200, 60
PROGRAM = f"""
import resource, runpy
resource.setrlimit(resource.RLIMIT_NOFILE, ({DESCRIPTORS}, {DESCRIPTORS}))
runpy.run_module("app", run_name="__main__", alter_sys=True)
"""


def test_a_burst_of_new_connections_is_answered(models: Path, log: Path) -> None:
    """The oldest idle connections close for it, and the others stay."""
    port = free_port()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TORCHLANE_")}
    given = {"model_dir": str(models), "devices": "cpu", "workers": "1", "port": str(port)}
    environment |= import_path()
    environment |= {f"TORCHLANE_{name.upper()}": value for name, value in given.items()}
    with log.open("wb") as output, contextlib.ExitStack() as stack:
        process = start("server", ("-c", PROGRAM), environment, [output.fileno()] * 3)
        try:
            wait_ready(Server(process, port, log))
            idle = []
            for _ in range(MOST):
                time.sleep(0.002)  # the loop's clock has whole milliseconds
                idle.append(_asked(port, stack))
                assert _is_answered(idle[-1])
            new = [_asked(port, stack) for _ in range(NEW)]
            assert all(_is_answered(each) for each in new)
            assert all(each.recv(1) == b"" for each in idle[:NEW])
            kept = [*idle[NEW + MOST // 50 :], *new]
            for each in kept:
                each.sendall(request())
            assert all(_is_answered(each) for each in kept)
        finally:
            process.kill()
            process.wait()


def _asked(port: int, stack: contextlib.ExitStack) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    stack.enter_context(connection)
    connection.sendall(request())
    return connection


def _is_answered(connection: socket.socket) -> bool:
    try:
        return connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
    except ConnectionError:
        return False
