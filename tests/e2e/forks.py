"""`python -m tests.e2e.forks IMPORTED SOCKET`: imports much once, then forks on request.

A request has a connection of its own: a line of JSON with a command line, the environment and the
working folder, and the descriptors of the standard streams. It is answered with a line for the
process id, and one for the exit code. Nothing runs in this process: each fork is as a new process
was, but for what it has imported; it is killed if its connection is closed. This process ends with
the last connection.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import sys
import tempfile
import types
from collections.abc import Sequence
from pathlib import Path

# Several workers need only the libraries: their parent decides how metrics are kept before it
# imports prometheus_client.
IMPORTED: dict[str, tuple[str, ...]] = {
    "server": ("tests.e2e.slow_app",),
    "libraries": (
        *("torch", "numpy", "fastapi", "uvicorn", "pydantic_settings", "structlog"),
        "PIL.Image",
    ),
    "programs": ("torch", "export.commands", "models.catalog", "app.bulk.run", "app.main"),
}


class _Requested:
    """A request, whose connection is this process's only one."""

    def __init__(self, text: bytes, streams: Sequence[int]) -> None:
        asked = json.loads(text)
        self.command: list[str] = asked["command"]
        self.environment: dict[str, str] = asked["environment"]
        self.folder: str = asked["folder"]
        self.streams = streams


def _forked(path: Path) -> _Requested | None:
    """Fork on request while anybody is connected; returns the request in each fork."""
    listener = socket.socket(socket.AF_UNIX)
    path.unlink(missing_ok=True)  # of one that was killed
    listener.bind(str(path))
    listener.listen(64)
    ended = os.pipe()
    os.set_blocking(ended[1], False)
    signal.set_wakeup_fd(ended[1])
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[socket.socket, int] = {}  # process ids; 0: nothing was asked for yet
    while True:
        ready = select.select(
            [listener.fileno(), ended[0], *map(socket.socket.fileno, running)], [], []
        )[0]
        for connection in [each for each in running if each.fileno() in ready]:
            text, streams, _, _ = socket.recv_fds(connection, 1 << 16, 3)
            if not text:
                if pid := running.pop(connection):
                    os.kill(pid, signal.SIGKILL)
                connection.close()
                continue
            while not text.endswith(b"\n"):
                text += connection.recv(1 << 16)
            if (pid := os.fork()) == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for other in (listener, *running):
                    other.close()
                os.closerange(min(ended), max(ended) + 1)
                return _Requested(text, streams)
            for each in streams:
                os.close(each)
            running[connection] = pid
            _tell(connection, pid)
        if ended[0] in ready:
            os.read(ended[0], 4096)
            _tell_ends(running)
        if listener.fileno() in ready:
            running[listener.accept()[0]] = 0
        if not running:
            shutil.rmtree(path.parent, ignore_errors=True)
            return None


def _tell(connection: socket.socket, number: int) -> None:
    with contextlib.suppress(ConnectionError):  # who asked has gone
        connection.sendall(b"%d\n" % number)


def _tell_ends(running: dict[socket.socket, int]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            for connection in [each for each, pid in running.items() if pid == found[0]]:
                _tell(connection, os.waitstatus_to_exitcode(found[1]))
                connection.close()
                del running[connection]


def main() -> None:
    # Only here: the tests' own process shall not have it.
    for name in IMPORTED[sys.argv[1]]:
        importlib.import_module(name)

    request = _forked(Path(sys.argv[2]))
    if request is None:
        return
    os.setsid()
    for target, stream in enumerate(request.streams):
        os.dup2(stream, target)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.folder)
    tempfile.tempdir = None  # it is that of the environment
    for name in ("app.__main__", "tests.e2e.slow_app"):  # what runs is not imported before
        sys.modules.pop(name, None)
    how, what, *arguments = request.command
    if how == "-c":
        sys.argv = ["-c", *arguments]
        module = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), module.__dict__)
        return
    sys.argv = [what, *arguments]
    runpy.run_module(what, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
