"""A process, as seen from its socket."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from app.handlers import privacy
from app.handlers.spawn import Spawned, spawn
from tests.e2e.forking import import_path
from tests.unit.app.handlers.pools import spec_of, write
from torchlane.handlers import launch
from torchlane.handlers.frames import (
    ANSWER,
    FROM_HANDLER,
    READY,
    REPLY,
    REQUEST,
    STOP,
    Decoder,
    head,
)

METHODS = """
async def predict(self, request):
    return {}
"""


def started(folder: Path, **fields: str) -> Spawned:
    """A process that is ready."""
    spawned = spawn(spec_of(folder, **fields))
    spawned.end.setblocking(True)
    spawned.end.settimeout(20)
    (frame,) = Decoder(FROM_HANDLER, 0).feed(spawned.end.recv(1000))
    assert frame.kind == READY
    assert "error" not in frame.meta
    return spawned


def ended(spawned: Spawned) -> tuple[int, str]:
    """Exit code and standard error of a process that ends by itself."""
    with spawned.end, open(spawned.stdout, "rb"), open(spawned.stderr, "rb") as errors:
        code = spawned.process.wait(20)
        return code, errors.read().decode()


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (head(ANSWER, 1), "a frame of the unknown kind"),
        (head(REPLY, 5, b"{}"), "a reply to the unknown call 5"),
        (head(REQUEST, 1, b'{"more":true}') + head(REQUEST, 1), "a second request 1"),
        (head(REQUEST, 1, b"["), "meta is not JSON"),
        (os.urandom(1000), "the server sent"),
    ],
    ids=["kind", "reply", "request", "meta", "noise"],
)
def test_wrong_frame_of_the_server_ends_the_process(
    tmp_path: Path, sent: bytes, reason: str
) -> None:
    spawned = started(write(tmp_path, METHODS))
    spawned.end.sendall(sent)
    code, errors = ended(spawned)
    assert code == 1
    assert reason in errors


def test_process_ends_when_it_is_told_to(tmp_path: Path) -> None:
    spawned = started(write(tmp_path, METHODS))
    spawned.end.sendall(head(STOP, 0))
    assert ended(spawned) == (0, "")


def test_process_ends_with_the_connection(tmp_path: Path) -> None:
    spawned = started(write(tmp_path, METHODS))
    spawned.end.shutdown(socket.SHUT_RDWR)
    assert ended(spawned) == (-signal.SIGKILL, "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes as another user")
def test_process_of_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    user = pwd.getpwnam("nobody")
    python = shutil.which("python3", path="/usr/bin:/bin")
    if python is None:
        pytest.skip("there is no interpreter that each user may run")
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # tmp_path is in a folder of root's
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copytree(Path(launch.__file__).parents[1], folder / "torchlane")
        monkeypatch.setattr(launch, "START", folder / "torchlane/handlers/start.py")
        text = "print(os.getuid(), os.getgid(), os.getgroups(), os.environ['HOME'])"
        write(folder, f"def setup(self):\n    {text}\n{METHODS}")
        spawned = started(folder, python=python, user="nobody")
        spawned.end.sendall(head(STOP, 0))
        with open(spawned.stdout, closefd=False) as output:
            printed = output.read()
        assert ended(spawned) == (0, "")
    assert printed == f"{user.pw_uid} {user.pw_gid} [] {user.pw_dir}\n"


PEEKS = """
import ctypes, os, sys

def child_reads():
    child = os.fork()
    if child == 0:
        try:
            open(f"/proc/{os.getppid()}/environ").read()
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # as before
before = child_reads()
hide_memory()
print(before, child_reads())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can hide a process's memory")
def test_other_processes_of_the_user_cannot_read_the_environment() -> None:
    code = Path(privacy.__file__).read_text() + PEEKS
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, check=True)
    assert done.stdout.split() == [b"0", b"1"]


def test_the_first_process_hides_the_servers_memory(tmp_path: Path) -> None:
    code = (
        "import ctypes, pathlib; from app.handlers.spawn import spawn; "
        "from tests.unit.app.handlers.pools import spec_of, write; "
        f"spawn(spec_of(write(pathlib.Path({str(tmp_path)!r}), 'x = 1'))); "
        "print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"  # PR_GET_DUMPABLE
    )
    environment = os.environ | import_path()
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment, capture_output=True, check=True
    )
    assert done.stdout == b"0\n"
