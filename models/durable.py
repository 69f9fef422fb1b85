"""Flushes files and folders to the disk, so that a rename survives a power failure."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


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
