"""Starts of `python -m app` that take no two seconds of imports: forks of a process that has them.

`python -m tests.e2e.forking` reads a line for each start: module, environment and log in JSON. It
prints the process id, and later `PID CODE` of each that has ended. Nothing runs in it: each fork is
as a new process was, but for what it has imported: the server too, or with `libraries` only those
that take long, as several workers need it, whose parent decides how metrics are kept before it
imports prometheus_client.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from deploy.compile import BUILDS, ROOT, digest

MODULES = ("app", "tests.e2e.slow_app")
LIBRARIES = ("torch", "numpy", "fastapi", "uvicorn", "pydantic_settings", "structlog", "PIL.Image")


@functools.cache
def import_path() -> dict[str, str]:
    """Makes servers run as by `make serve`: as machine code, if it is made of these sources."""
    made = ROOT / BUILDS / digest(ROOT)
    return {"PYTHONPATH": os.pathsep.join(map(str, (made, ROOT) if made.exists() else (ROOT,)))}


class Forked:
    """A started process, as `subprocess.Popen` has it."""

    def __init__(self, pid: int, forks: Forks) -> None:
        self.pid = pid
        self._forks = forks

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        return self._forks.ended(self.pid, 0.0)

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (3600.0 if timeout is None else timeout)
        while (code := self._forks.ended(self.pid, deadline - time.monotonic())) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forks:
    """The process that has imported the server, and what it says."""

    def __init__(self, imported: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, imported],
            env=os.environ | import_path(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._codes: dict[int, int] = {}
        self._said = b""
        atexit.register(self._process.communicate)

    def start(self, module: str, environment: Mapping[str, str], log: Path) -> Forked:
        asked = {"module": module, "environment": dict(environment), "log": str(log)}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")
        self._process.stdin.flush()
        while (pid := self._heard(60.0)) is None:
            assert self._process.poll() is None
        return Forked(pid, self)

    def ended(self, pid: int, within_s: float) -> int | None:
        """The exit code of a process, if it ends in time."""
        if pid not in self._codes:
            self._heard(max(0.0, within_s))
        return self._codes.get(pid)

    def _heard(self, within_s: float) -> int | None:
        """Keep the codes that are told; returns the process id of a new one."""
        assert self._process.stdout is not None
        out, new = self._process.stdout.fileno(), None
        while select.select([out], [], [], within_s)[0] and (data := os.read(out, 4096)):
            *lines, self._said = (self._said + data).split(b"\n")
            for line in lines:
                pid, _, code = line.partition(b" ")
                if code:
                    self._codes[int(pid)] = int(code)
                else:
                    new = int(pid)
                    self._codes.pop(new, None)  # of an earlier one of this number
            within_s = 0.0
        return new


@functools.cache
def forks(imported: str) -> Forks:
    """The one of this process that has imported the `server`, or only `libraries`."""
    return Forks(imported)


def _forked() -> dict[str, object] | None:
    """Fork on request until the other side has gone; returns the request in each fork."""
    asked, ended = b"", os.pipe()
    os.set_blocking(ended[1], False)
    signal.set_wakeup_fd(ended[1])
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([0, ended[0]], [], [])
        if ended[0] in ready:
            os.read(ended[0], 4096)
            while (found := _reaped()) is not None:
                os.write(1, b"%d %d\n" % found)
        if 0 not in ready:
            continue
        if not (data := os.read(0, 65536)):
            return None
        *lines, asked = (asked + data).split(b"\n")
        for line in lines:
            if (pid := os.fork()) == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.closerange(min(ended), max(ended) + 1)
                request: dict[str, object] = json.loads(line)
                return request
            os.write(1, b"%d\n" % pid)


def _reaped() -> tuple[int, int] | None:
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, os.waitstatus_to_exitcode(status)) if pid else None


def main() -> None:
    # Only here: the tests' own process shall not have it.
    for name in LIBRARIES if sys.argv[1] == "libraries" else ("tests.e2e.slow_app",):
        importlib.import_module(name)

    request = _forked()
    if request is None:
        return
    log = os.open(str(request["log"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number, target in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
        os.dup2(number, target)
    environment = request["environment"]
    assert isinstance(environment, dict)
    os.environ.clear()
    os.environ.update(environment)
    module = str(request["module"])
    sys.argv = [module]
    for name in ("app.__main__", "tests.e2e.slow_app"):  # what runs is not imported before
        sys.modules.pop(name, None)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
