"""Opening files of a folder and nothing else: no link that leads out, no pipe, no device."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

NO_PART_OF_A_NAME = frozenset("/\\\0")
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Without O_NONBLOCK, opening a pipe would wait for somebody to write to it, perhaps for ever.
FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class FileRefused(ValueError):
    """The file must not be opened; the message names it without the folders that lead to it."""


def open_inside(folder: Path, name: str, root: Path | None = None) -> BinaryIO:
    """Open a regular file of a folder for reading.

    Links are followed as long as they stay inside: those of the file inside the folder, those of
    the folder inside the root. That is how Kubernetes mounts ConfigMaps, and the root itself may be
    a link to anywhere. What they come to is opened step by step without following any further
    link, so whoever exchanges one in between gains nothing.

    Args:
        folder: what the file must lie in; `root` and what follows it, where there is a root.
        name: of the file; no path.
        root: what the folder must lie in; None: wherever it lies.

    Raises:
        FileRefused: if it lies elsewhere, or is no regular file.
        OSError: if it cannot be opened.
    """
    if name in ("", ".", "..") or NO_PART_OF_A_NAME & set(name):
        raise FileRefused(f"{name!r} is not the name of a file in the artifact's folder")
    base = _real(root or folder)
    real_folder = _real(folder)
    if not real_folder.is_relative_to(base):
        raise FileRefused(_where_it_leads_out(folder, root or folder, base))
    real = _real(real_folder / name)
    if not real.is_relative_to(real_folder):
        raise FileRefused(
            f"{name} is a link that leads out of the artifact's folder; put the file itself there"
        )
    descriptor = _walk(base, real.relative_to(base).parts or (".",))
    try:
        _check_kind(os.fstat(descriptor).st_mode, name)
    except BaseException:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def read_inside(folder: Path, name: str, limit: int, root: Path | None = None) -> bytes:
    """Read a file whole, if it is not larger than it may be.

    Args:
        folder: see `open_inside`, like `root`.
        name: of the file.
        limit: bytes that it may have.
        root: what the folder must lie in.

    Raises:
        FileRefused: see `open_inside`; also if the file is larger.
        OSError: if it cannot be read.
    """
    with open_inside(folder, name, root) as file:
        size = size_of(file)
        if size > limit:
            raise FileRefused(f"{name} has {size:,} bytes; at most {limit:,} are read")
        return file.read(size)  # and no more, should somebody append to it meanwhile


def size_of(file: BinaryIO) -> int:
    """Bytes of an open file."""
    return os.fstat(file.fileno()).st_size


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _walk(base: Path, parts: tuple[str, ...]) -> int:
    """Open what lies below a folder, following no link on the way."""
    at = os.open(base, FOLDER_FLAGS)
    try:
        for part in parts[:-1]:
            inner = os.open(part, FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = inner
        return os.open(parts[-1], FILE_FLAGS, dir_fd=at)
    finally:
        os.close(at)


def _check_kind(mode: int, name: str) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise FileRefused(f"{name} is no regular file but a pipe or a device; put a file there")


def _where_it_leads_out(folder: Path, root: Path, base: Path) -> str:
    """Says which of the folders below the root is the link."""
    parts = folder.relative_to(root).parts
    leading = next(
        (
            n
            for n in range(1, len(parts))
            if not _real(root.joinpath(*parts[:n])).is_relative_to(base)
        ),
        len(parts),
    )
    return (
        f"the folder {'/'.join(parts[:leading])} is a link that leads out of the repository; put "
        "the folder itself there, or let the repository as a whole be the link"
    )
