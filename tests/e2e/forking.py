"""Starts of Python programs without seconds of imports: forks of a process that has them.

All workers of pytest-xdist share it (`forks.py`); it ends with the last of them.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from filelock import FileLock

from deploy.compile import BUILDS, ROOT, digest

MODULES = ("app", "tests.e2e.slow_app", "tests.chaos.server")
FOLDER = f"torchlane-{os.environ.get('PYTEST_XDIST_TESTRUNUID', str(os.getpid()))[:12]}"
LIMIT_S = 200.0  # less than a test may take
TEMPORARY = Path(tempfile.gettempdir())  # before a test changes it


@functools.cache
def import_path() -> dict[str, str]:
    """Makes servers run as by `make serve`: as machine code, if it is made of these sources."""
    made = ROOT / BUILDS / digest(ROOT)
    return {"PYTHONPATH": os.pathsep.join(map(str, (made, ROOT) if made.exists() else (ROOT,)))}


class Forked:
    """A started process, as `subprocess.Popen` has it; it is killed if this one ends before it."""

    def __init__(self, connection: socket.socket) -> None:
        self._told = connection
        self._code: int | None = None
        self.pid = self._line()

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        if (code := self._ended(timeout)) is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, within_s: float | None) -> int | None:
        within_s = None if within_s is None else max(0.0, within_s)
        if self._code is None and select.select([self._told], [], [], within_s)[0]:
            self._code = self._line()
            self._told.close()
        return self._code

    def _line(self) -> int:
        """The next number that is told."""
        line = b""
        while not line.endswith(b"\n"):
            byte = self._told.recv(1)
            assert byte, "the process that forks has ended"
            line += byte
        return int(line)


def start(
    imported: str,
    command: Sequence[str | Path],
    environment: Mapping[str, str],
    streams: Sequence[int],
    folder: Path | None = None,
) -> Forked:
    """A process of `python COMMAND`, which is -m MODULE or -c CODE with arguments.

    Args:
        imported: a key of `forks.IMPORTED`.
        command: see above.
        environment: all of it.
        streams: its standard input, output and error.
        folder: its working folder.
    """
    return Forked(_requested(imported, command, environment, streams, folder))


def _requested(
    imported: str,
    command: Sequence[str | Path],
    environment: Mapping[str, str],
    streams: Sequence[int],
    folder: Path | None,
) -> socket.socket:
    connection = _connected(_served(imported))
    asked = {
        "command": [str(each) for each in command],
        "environment": dict(environment),
        "folder": str(folder or Path.cwd()),
    }
    socket.send_fds(connection, [json.dumps(asked).encode() + b"\n"], streams)
    return connection


class Piped(Forked):
    """A command of our programs with pipes to its standard input, and from its standard error."""

    def __init__(
        self, *command: str | Path, environment: Mapping[str, str], folder: Path | None = None
    ) -> None:
        (given, stdin), (stderr, told) = os.pipe(), os.pipe()
        self.stdin, self.stderr = os.fdopen(stdin, "wb"), os.fdopen(stderr, "rb")
        with open(given) as source, open(os.devnull, "w") as nothing, open(told, "w") as error:
            streams = [each.fileno() for each in (source, nothing, error)]
            super().__init__(_requested("programs", command, environment, streams, folder))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait()
        self.stderr.close()
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()


def run(
    *command: str | Path, environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command of our programs to its end, as `subprocess.run` does with captured output."""
    given = os.environ if environment is None else environment
    with (
        open(os.devnull) as nothing,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as error,
    ):
        streams = [each.fileno() for each in (nothing, out, error)]
        process = start("programs", command, given, streams, folder)
        try:
            code = process.wait(LIMIT_S)
        finally:
            process.kill()
            process.wait()
        for each in (out, error):
            each.seek(0)
        return subprocess.CompletedProcess(command, code, out.read(), error.read())


def write_command(folder: Path) -> dict[str, str]:
    """Write the command `torchlane` into a folder; returns the variables with which it is found."""
    forked = Path(__file__).with_name("forked.py")
    command = folder / "torchlane"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E {forked} -m torchlane "$@"\n')
    command.chmod(0o755)
    return {
        "FORKS": str(_served("programs")),
        "PATH": f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}",
    }


@functools.cache
def _served(imported: str) -> Path:
    """The socket of the process that has imported this; this process keeps it from ending."""
    folder = TEMPORARY / f"{FOLDER}-{imported}"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / "socket"
    with FileLock(folder / "lock"):
        try:
            connection = _connected(path)
        except OSError:
            command = [sys.executable, "-P", "-m", "tests.e2e.forks", imported, str(path)]
            connection = _connected_when_up(path, command)
        connection.detach()  # open until this process ends
    return path


def _connected_when_up(path: Path, command: Sequence[str]) -> socket.socket:
    process = subprocess.Popen(
        command, env=os.environ | import_path(), stdin=subprocess.DEVNULL, start_new_session=True
    )
    while True:
        assert process.poll() is None
        with contextlib.suppress(OSError):
            connection = _connected(path)
            process.returncode = 0  # it outlives this process, and is not waited for
            return connection
        time.sleep(0.02)


def _connected(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        raise
    return connection
