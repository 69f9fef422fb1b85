"""Forks of a process, and when they are safe."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

ROUND = """
import os, signal, socket, subprocess, sys, threading, time
from app.processes.fork import fork, is_safe
ours, theirs = socket.socketpair()
"""


def told(code: str) -> str:
    """The output of a process: pytest's own has threads, and must not be forked."""
    done = subprocess.run(
        [sys.executable, "-c", ROUND + code], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_exit_code_comes_from_the_forked_function() -> None:
    killed = "lambda: os.kill(os.getpid(), signal.SIGKILL)"
    said = told(
        f"for serve in (lambda: 7, lambda: 0, lambda: 1 / 0, {killed}):\n"
        "    child = fork(serve, ()); print('code', child.wait(60), child.wait(), flush=True)"
    )
    codes = [line for line in said.splitlines() if line.startswith("code")]
    assert codes == [f"code {code} {code}" for code in (7, 0, 1, -signal.SIGKILL)]
    assert said.count("ZeroDivisionError") == 1


def test_child_has_its_own_group_and_sockets() -> None:
    said = told(
        "child = fork(lambda: (print(os.getpgid(0) == os.getpid(), ours.fileno()), 0)[1], (ours,))"
        "\nchild.wait(); print(ours.fileno() > 0)"
    )
    assert said == "True -1\nTrue\n"


def test_child_that_does_not_end_is_killed() -> None:
    said = told(
        "child = fork(lambda: time.sleep(60), ())\n"
        "try: child.wait(0.05)\n"
        "except subprocess.TimeoutExpired as error: print(error.timeout)\n"
        "child.kill(); print(child.wait()); child.kill()"
    )
    assert said == f"0.05\n{-signal.SIGKILL}\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_imported_server_has_one_thread() -> None:
    more = "threading.Thread(target=time.sleep, args=(30,), daemon=True).start()"
    said = told(f"import app.main; print(is_safe()); {more}; print(is_safe())")
    assert said == "True\nFalse\n"
