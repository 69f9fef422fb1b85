"""Starts the process of a handler for a server, which reads what it prints."""

from __future__ import annotations

import os
import socket
import subprocess
from typing import NamedTuple

from app.handlers.contract import HandlerSpec
from app.handlers.privacy import hide_memory
from torchlane.handlers.launch import Code, launch


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


def spawn(spec: HandlerSpec) -> Spawned:
    """Start a process, on the thread of the event loop: see `launch`.

    Before that, the first call hides what the server has in memory.

    Raises:
        OSError: it cannot be started.
    """
    hide_memory()
    code = Code(
        f"{spec.name}/{spec.version}",
        spec.folder,
        spec.entry,
        spec.python,
        spec.max_batch_size,
        spec.concurrency,
        spec.user,
    )
    process, end = launch(code, subprocess.PIPE, subprocess.PIPE)
    if process.stdout is None or process.stderr is None:
        raise RuntimeError("bug: a process without pipes")
    stdout, stderr = os.dup(process.stdout.fileno()), os.dup(process.stderr.fileno())
    process.stdout.close()
    process.stderr.close()
    end.setblocking(False)
    return Spawned(process, end, stdout, stderr)
