"""Starts processes of handlers: a clean environment, and no descriptors but their own."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import orjson

from app.handlers.contract import HandlerSpec
from torchlane.handlers import frames

# Nothing else of the server's environment: it may have keys.
KEPT = frozenset(("PATH", "HOME", "LANG", "TZ", "TMPDIR", "VIRTUAL_ENV"))
KEPT_BEGINNING = "LC_"
SET: Mapping[str, str] = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
START = Path(frames.__file__).with_name("start.py")


class Spawned(NamedTuple):
    """A new process.

    Attributes:
        process: leader of its own session and group.
        end: the server's end of the socket pair.
        stdout, stderr: descriptors of pipes.
    """

    process: subprocess.Popen[bytes]
    end: socket.socket
    stdout: int
    stderr: int


def environment(own: Mapping[str, str]) -> dict[str, str]:
    """The environment of a handler, of that of the server."""
    kept = {k: v for k, v in own.items() if k in KEPT or k.startswith(KEPT_BEGINNING)}
    return {**kept, **SET}


def spawn(spec: HandlerSpec) -> Spawned:
    """Start a process; takes some milliseconds.

    On the thread of the event loop: Linux ends the process when the thread that started it ends.

    Raises:
        OSError: it cannot be started, for example because there is no such interpreter.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        settings = {
            "descriptor": theirs.fileno(),
            "parent": os.getpid(),
            "folder": str(spec.folder),
            "entry": spec.entry,
            "max_batch_size": spec.max_batch_size,
            "concurrency": spec.concurrency,
        }
        command = [spec.python, "-I", "-B", "-u", str(START)]
        command += [f"{spec.name}/{spec.version}", orjson.dumps(settings).decode()]
        try:
            # The command is ours; the code of the handler is the operator's, and is meant to run.
            process = subprocess.Popen(  # nosec B603
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=environment(os.environ),
                cwd=spec.folder,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
    if process.stdout is None or process.stderr is None:
        raise RuntimeError("bug: a process without pipes")
    stdout, stderr = os.dup(process.stdout.fileno()), os.dup(process.stderr.fileno())
    process.stdout.close()
    process.stderr.close()
    ours.setblocking(False)
    return Spawned(process, ours, stdout, stderr)
