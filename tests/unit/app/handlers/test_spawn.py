"""A process, as seen from its socket."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from app.handlers.spawn import Spawned, environment, spawn
from tests.unit.app.handlers.pools import spec_of, write
from torchlane.handlers.frames import ANSWER, REPLY, REQUEST, STOP, head

METHODS = """
async def predict(self, request):
    return {}
"""


def started(folder: Path) -> Spawned:
    """A process that is ready."""
    spawned = spawn(spec_of(write(folder, METHODS)))
    spawned.end.setblocking(True)
    spawned.end.settimeout(20)
    assert len(spawned.end.recv(1000)) == 16
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
    spawned = started(tmp_path)
    spawned.end.sendall(sent)
    code, errors = ended(spawned)
    assert code == 1
    assert reason in errors


def test_process_ends_when_it_is_told_to(tmp_path: Path) -> None:
    spawned = started(tmp_path)
    spawned.end.sendall(head(STOP, 0))
    assert ended(spawned) == (0, "")


def test_process_ends_with_the_connection(tmp_path: Path) -> None:
    spawned = started(tmp_path)
    spawned.end.shutdown(socket.SHUT_RDWR)
    assert ended(spawned) == (-signal.SIGKILL, "")


def test_environment_is_a_short_list() -> None:
    own = {"PATH": "/bin", "LC_TIME": "C", "TORCHLANE_API_KEYS": "x", "PYTHONPATH": "/", "OMP": "1"}
    assert environment(own) == {
        "PATH": "/bin",
        "LC_TIME": "C",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
