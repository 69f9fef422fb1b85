"""Starts the process of a handler: a clean environment, and no descriptors but its own."""

from __future__ import annotations

import json
import os
import pwd
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

# Nothing else of the starter's environment: it may have keys.
KEPT = frozenset(("PATH", "HOME", "LANG", "TZ", "TMPDIR", "VIRTUAL_ENV"))
KEPT_BEGINNING = "LC_"
SET: Mapping[str, str] = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
START = Path(__file__).with_name("start.py")


class Settings(NamedTuple):
    """How to run a handler.

    Attributes:
        descriptor: of the process's end of the socket pair.
        parent: id of the process that started it.
        folder: with the handler's files.
        entry: module and class, such as "shop:Shop".
        max_batch_size: 1: `predict`; more: `predict_batch`.
        concurrency: threads for `def predict`.
    """

    descriptor: int
    parent: int
    folder: str
    entry: str
    max_batch_size: int
    concurrency: int


class Code(NamedTuple):
    """What to run.

    Attributes:
        name: of the handler, for lists of processes.
        folder: with its files.
        entry: see `Settings`.
        python: the interpreter.
        max_batch_size: see `Settings`.
        concurrency: see `Settings`.
        user: that the process runs as; None: its starter's. Another one needs root.
    """

    name: str
    folder: Path
    entry: str
    python: str
    max_batch_size: int
    concurrency: int
    user: str | None = None


class Launched(NamedTuple):
    """A new process, leader of its own session and group, and this side of its connection."""

    process: subprocess.Popen[bytes]
    end: socket.socket


def environment(own: Mapping[str, str]) -> dict[str, str]:
    """The environment of a handler, of that of its starter."""
    kept = {k: v for k, v in own.items() if k in KEPT or k.startswith(KEPT_BEGINNING)}
    return {**kept, **SET}


def launch(code: Code, stdout: int, stderr: int) -> Launched:
    """Start a process; takes some milliseconds.

    It ends with the thread that calls this, on Linux.

    Args:
        code: what to run.
        stdout: a descriptor, or `subprocess.PIPE`.
        stderr: as `stdout`.

    Raises:
        OSError: it cannot be started, for example because there is no such interpreter.
    """
    owner = _owner(code.user)
    ours, theirs = socket.socketpair()
    with theirs:
        settings = Settings(
            theirs.fileno(),
            os.getpid(),
            str(code.folder),
            code.entry,
            code.max_batch_size,
            code.concurrency,
        )
        command = [code.python, "-I", "-B", "-u", str(START), code.name]
        try:
            # The command is ours; the code of the handler is the operator's, and is meant to run.
            process = subprocess.Popen(  # nosec B603
                [*command, json.dumps(settings._asdict())],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                bufsize=0,
                env={**environment(os.environ), **owner.environment},
                cwd=code.folder,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                user=owner.user,
                group=owner.group,
                extra_groups=owner.extra_groups,
            )
        except BaseException:
            ours.close()
            raise
    return Launched(process, ours)


def has_exited(pid: int) -> bool:
    """Whether a child has exited, without reaping it: its group keeps its number until then."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # the kernel has reaped it, because SIGCHLD is ignored
        return True


class _Owner(NamedTuple):
    """Whom a process belongs to, as for `subprocess.Popen`; by default whom its starter does."""

    user: int | None = None
    group: int | None = None
    extra_groups: tuple[int, ...] | None = None
    environment: Mapping[str, str] = {}


def _owner(user: str | None) -> _Owner:
    """The owner of that name.

    Raises:
        OSError: there is no such user.
    """
    if user is None:
        return _Owner()
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise OSError(f"there is no user {user!r}") from None
    if entry.pw_uid == os.geteuid():
        return _Owner()
    return _Owner(entry.pw_uid, entry.pw_gid, (), {"HOME": entry.pw_dir})
