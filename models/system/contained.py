"""Opens regular files of a folder only: no link out of the folder, no pipe, no device."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

FORBIDDEN_IN_NAMES = frozenset("/\\\0")
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Without O_NONBLOCK, opening a pipe would wait for a writer, perhaps forever.
FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class FileRejected(ValueError):
    """The file must not be opened; the message names it without its parent folders."""


def open_inside(folder: Path, name: str, root: Path | None = None) -> BinaryIO:
    """Open a regular file of a folder for reading.

    Links are followed only inside: a file's within the folder, the folder's within the root.
    Kubernetes mounts ConfigMaps that way, and the root itself may be a link to anywhere. The
    resolved path is opened step by step without following further links, so that replacing a part
    of it meanwhile gains an attacker nothing.

    Args:
        folder: must contain the file; if there is a root, a path below it.
        name: of the file, not a path.
        root: must contain the folder; None: no restriction.

    Raises:
        FileRejected: if it is elsewhere, or not a regular file.
        OSError: if it cannot be opened.
    """
    if name in ("", ".", "..") or FORBIDDEN_IN_NAMES & set(name):
        raise FileRejected(f"{name!r} is not the name of a file in the artifact's folder")
    base = _real(root or folder)
    real_folder = _real(folder)
    if not real_folder.is_relative_to(base):
        raise FileRejected(_where_it_leads_out(folder, root or folder, base))
    real = _real(real_folder / name)
    if not real.is_relative_to(real_folder):
        raise FileRejected(
            f"{name} is a link that leads out of the artifact's folder; put the file itself there"
        )
    return _open_regular(_walk(base, real.relative_to(base).parts or (".",)), name)


def read_inside(folder: Path, name: str, limit: int, root: Path | None = None) -> bytes:
    """Read a whole file if it is within a size limit.

    See `open_inside`; the limit is in bytes.

    Raises:
        FileRejected: see `open_inside`; also if the file is larger.
        OSError: if it cannot be read.
    """
    with open_inside(folder, name, root) as file:
        return _read_whole(file, name, limit)


def read_named(path: Path, limit: int) -> bytes:
    """Read a whole file that the operator named; links may lead anywhere.

    Never waits for the writer of a pipe.

    The limit is in bytes.

    Raises:
        FileRejected: if it is not a regular file, or larger.
        OSError: if it cannot be read.
    """
    with _open_regular(os.open(path, FILE_FLAGS & ~os.O_NOFOLLOW), path.name) as file:
        return _read_whole(file, path.name, limit)


def printable(text: str) -> str:
    """Return the text for messages: file names may contain control characters and stray bytes."""
    return "".join(each if each.isprintable() else "?" for each in text)


def size_of(file: BinaryIO) -> int:
    """Return the size of an open file in bytes."""
    return os.fstat(file.fileno()).st_size


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _walk(base: Path, parts: tuple[str, ...]) -> int:
    """Open a path below a folder without following links."""
    at = os.open(base, FOLDER_FLAGS)
    try:
        for part in parts[:-1]:
            inner = os.open(part, FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = inner
        return os.open(parts[-1], FILE_FLAGS, dir_fd=at)
    finally:
        os.close(at)


def _open_regular(descriptor: int, name: str) -> BinaryIO:
    """Open the file of a descriptor, which is closed if it is not a regular file."""
    try:
        _check_kind(os.fstat(descriptor).st_mode, name)
    except BaseException:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def _read_whole(file: BinaryIO, name: str, limit: int) -> bytes:
    size = size_of(file)
    if size > limit:
        raise FileRejected(f"{name} has {size:,} bytes; at most {limit:,} are read")
    return file.read(size)  # no more, even if the file grows meanwhile


def _check_kind(mode: int, name: str) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise FileRejected(f"{name} is not a regular file but a pipe or a device; put a file there")


def _where_it_leads_out(folder: Path, root: Path, base: Path) -> str:
    """Return the message that names the folder below the root that is a link."""
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
        "the folder itself there, or make the repository as a whole the link"
    )
