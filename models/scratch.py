"""Temporary folders that the next process removes if theirs was killed."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def scratch_folder(prefix: str, parent: Path) -> Iterator[Path]:
    """A private folder, removed at the end; folders that killed processes left are removed first.

    A process holds a lock on its folder, which the kernel releases however the process ends. Other
    containers that share the parent folder see the lock too. Where the file system has no locks
    nothing is removed.

    Args:
        prefix: for folders of this function alone; eight characters follow it.
        parent: the folder to make it in.

    Raises:
        OSError: if it cannot be made.
    """
    for left in parent.glob(f"{glob.escape(prefix)}????????"):
        _remove_unlocked(left)
    folder, lock = _make(prefix, parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _make(prefix: str, parent: Path) -> tuple[Path, int]:
    """Make and lock a folder, again if another process removed it before it was locked."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            lock = os.open(folder, FLAGS)
        except FileNotFoundError:
            continue
        with contextlib.suppress(OSError):  # the file system has no locks
            fcntl.flock(lock, fcntl.LOCK_SH)  # NFS allows no exclusive one on a folder
        if folder.exists():
            return folder, lock
        os.close(lock)


def _remove_unlocked(folder: Path) -> None:
    """Remove a folder of this user that no process holds; follows no link."""
    try:
        lock = os.open(folder, FLAGS)
    except OSError:  # it is a link or a file, belongs to somebody else, or is gone
        return
    try:
        if os.fstat(lock).st_uid == os.geteuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:  # another process holds it
        return
    finally:
        os.close(lock)
