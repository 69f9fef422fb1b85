"""Zip files from elsewhere are looked at before anything unpacks them: `.pt`, `.pt2` and `.mar`."""

from __future__ import annotations

import stat
import zipfile
from pathlib import PurePosixPath
from typing import IO

MAX_ENTRIES = 100_000
# torch stores what it writes uncompressed; a text that deflates better than this is no honest one.
MAX_RATIO = 200
FREE_BYTES = 16 * 1024 * 1024  # small files may shrink as they like


class ArchiveError(ValueError):
    """The file is no zip archive, or one that must not be unpacked; the message says why."""


def check_archive(file: IO[bytes], what: str) -> list[str]:
    """Look at the directory of a zip archive; nothing is unpacked, the file is read from its start.

    Refused are paths that lead out of the folder they are unpacked in, links, names that occur
    twice, and contents out of proportion to the file (zip bombs).

    Args:
        file: open for reading, seekable; left at its start.
        what: the file's name, for messages.

    Returns:
        the names of its entries.

    Raises:
        ArchiveError: as said above.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            packed = sum(entry.compress_size for entry in entries)
    except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError) as error:
        raise ArchiveError(f"{what} is not a zip archive: {error}") from error
    finally:
        file.seek(0)
    if len(entries) > MAX_ENTRIES:
        raise ArchiveError(f"{what} has {len(entries)} entries; at most {MAX_ENTRIES} are taken")
    names: set[str] = set()
    for entry in entries:
        _check_name(entry, what)
        if entry.filename in names:
            raise ArchiveError(f"{what} holds {entry.filename!r} twice")
        names.add(entry.filename)
    unpacked = sum(entry.file_size for entry in entries)
    if unpacked > FREE_BYTES + MAX_RATIO * packed:
        raise ArchiveError(
            f"{what} would unpack to {unpacked:,} bytes from {packed:,}; no honest archive does"
        )
    return sorted(names)


def _check_name(entry: zipfile.ZipInfo, what: str) -> None:
    name = entry.filename
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or not name:
        raise ArchiveError(f"{what} holds {name!r}, a path that leads out of its folder")
    if stat.S_ISLNK(entry.external_attr >> 16):
        raise ArchiveError(f"{what} holds {name!r}, which is a link")
