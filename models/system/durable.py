"""Files that several processes replace: by a rename that survives a power failure, and locked."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

LOOK_S = 0.02  # between two attempts to lock a file


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk.

    Raises:
        OSError: if that fails.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Write a file that replaces `path` at the end of the block, or leaves nothing behind.

    Raises:
        OSError: if that fails.
    """
    new = path.with_name(f".{path.name}.tmp")
    try:
        with new.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        sync(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)  # a partial file would keep a full disk full
        raise


@contextlib.contextmanager
def locked(path: Path, wait_s: float = 0.0) -> Iterator[None]:
    """Hold the lock of a file during the block; it is created if it is missing, and stays.

    Only its owner can open it: anybody who can may hold the lock.

    Raises:
        BlockingIOError: if another process holds it for longer than `wait_s`.
        OSError: if it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        ends_at = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= ends_at:
                    raise
            time.sleep(LOOK_S)
        yield
    finally:
        os.close(descriptor)
