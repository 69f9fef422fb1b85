"""Locks on the digests that are served, shared by a server's processes.

A process that serves a version holds a shared lock on the file NAME@VERSION@DIGEST. The kernel
releases the lock however the process ends, so no claim outlives its process. The files are empty:
claims work in a folder whose disk is full.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from app.types import ModelId

LOCK = "lock"


class Claims:
    """The digests that this process and the server's other processes serve.

    All methods block for a few system calls.

    Args:
        folder: shared by the processes; created at first use.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[ModelId, int] = {}  # descriptors of locked files

    def served(self, model: ModelId) -> str | None:
        """The digest with which any process serves a version; None: none does."""
        with self._alone():
            return self._served(model)

    def claim(self, model: ModelId, digest: str) -> str:
        """Claim a version with a digest, unless it is claimed with another one.

        Returns:
            the digest with which the version is claimed now.
        """
        with self._alone():
            served = self._served(model)
            if served not in (None, digest):
                return served or digest
            if model not in self._held:
                path = self._folder / f"{_prefix(model)}{digest}"
                file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                fcntl.flock(file, fcntl.LOCK_SH)
                self._held[model] = file
            return digest

    def release(self, model: ModelId) -> None:
        """End this process's claim on a version, if there is one."""
        file = self._held.pop(model, None)
        if file is not None:
            with self._alone():
                os.close(file)
                self._served(model)

    def _served(self, model: ModelId) -> str | None:
        """See `served`; removes files that no process has locked."""
        for path in self._folder.glob(f"{_prefix(model)}*"):
            if not _removed(path):
                return path.name.removeprefix(_prefix(model))
        return None

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Exclude the other processes, so that no file is removed while it is being locked."""
        self._folder.mkdir(exist_ok=True)
        with (self._folder / LOCK).open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _prefix(model: ModelId) -> str:
    return f"{model.name}@{model.version}@"


def _removed(path: Path) -> bool:
    """Remove a file unless a process has locked it."""
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        path.unlink()
        return True
    finally:
        os.close(file)
