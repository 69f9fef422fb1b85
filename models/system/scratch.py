"""Creates temporary folders that a later process removes if their owner was killed."""

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
    """Provide a private folder, removed at the end; first remove those of killed processes.

    A process holds a lock on its folder, which the kernel releases however the process ends.
    Containers that share the parent folder see the lock too. If the file system has no locks,
    nothing is removed.

    Args:
        prefix: used only for folders of this function; eight characters follow it.
        parent: the folder to create it in.

    Raises:
        OSError: if it cannot be created.
    """
    for leftover in parent.glob(f"{glob.escape(prefix)}????????"):
        _remove_unlocked(leftover)
    folder, lock = _make(prefix, parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _make(prefix: str, parent: Path) -> tuple[Path, int]:
    """Create and lock a folder; retry if another process removed it before it was locked."""
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
    """Remove a folder of this user that no process holds, without following links."""
    try:
        lock = os.open(folder, FLAGS)
    except OSError:  # a link or a file, another user's, or gone
        return
    try:
        if os.fstat(lock).st_uid == os.geteuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:  # in use by another process
        return
    finally:
        os.close(lock)
