"""Checks untrusted zip files before anything unpacks them: `.pt`, `.pt2`, `.mar`, OpenVINO's."""

from __future__ import annotations

import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import IO

BEGINNING = b"PK\x03\x04"
MAX_ENTRIES = 100_000
# torch deflates only the text of the code, to a tenth at best. A nested archive may multiply that
# again, so a small file can unpack to a few hundred megabytes at most.
MAX_RATIO = 10
# torch stores tensors, in these folders below the archive's root, and libraries uncompressed.
STORED_FOLDERS = ("data", "constants")
STORED_SUFFIX = ".so"
FREE_BYTES = 16 * 1024 * 1024  # small files may have any ratio
ENCRYPTED_FLAG = 0x1
# Raised by Python's zipfile for invalid bytes; NotImplementedError is for an unknown version or
# compression.
DAMAGE = (
    zipfile.BadZipFile,
    NotImplementedError,
    ValueError,
    EOFError,
    OSError,
    OverflowError,
    LookupError,
    struct.error,
    zlib.error,
)

# The records at the end, field by field (APPNOTE.TXT, 4.3.14 to 4.3.16).
END, END_SIGNATURE = struct.Struct("<4s4H2LH"), b"PK\5\6"
LOCATOR, LOCATOR_SIGNATURE = struct.Struct("<4sLQL"), b"PK\6\7"
END64, END64_SIGNATURE = struct.Struct("<4sQ2H2L4Q"), b"PK\6\6"


class ArchiveError(ValueError):
    """The file is damaged or must not be opened; the message says why."""


def check_archive(file: IO[bytes], what: str, *, of_torch: bool = True) -> list[str]:
    """Check the directory of a zip archive without unpacking anything.

    It rejects paths that leave the target folder, links and devices, duplicate names, encrypted
    entries, and contents too large for the file (zip bombs). The limit is relative to the file's
    real size, because packed sizes in its directory may be false. In an archive by torch, tensors
    and libraries must be stored uncompressed, as torch writes them.

    Args:
        file: open for reading, seekable; read from its start, and left there.
        what: the file's name, for messages.
        of_torch: whether it is a `.pt` or `.pt2`; False: another archive, such as a `.mar`.

    Returns:
        the names of its entries, sorted.

    Raises:
        ArchiveError: as described above.
    """
    entries = read_directory(file, what)
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if of_torch:
        for entry in entries:
            is_deflated = entry.compress_type != zipfile.ZIP_STORED
            if is_deflated and _is_stored(PurePosixPath(entry.orig_filename)):
                raise ArchiveError(
                    f"{what} contains {entry.filename!r} deflated, which torch only stores; "
                    "save the model again with torch.jit.save"
                )
    unpacked_bytes = sum(entry.file_size for entry in entries)
    if unpacked_bytes > FREE_BYTES + MAX_RATIO * size:
        raise ArchiveError(
            f"{what} would unpack to {unpacked_bytes:,} bytes from {size:,}; at most "
            f"{FREE_BYTES + MAX_RATIO * size:,} are allowed; pack it uncompressed (a .mar: "
            "torch-model-archiver --archive-format zip-store)"
        )
    return sorted(entry.filename for entry in entries)


def read_directory(
    file: IO[bytes], what: str, largest_bytes: int | None = None
) -> list[zipfile.ZipInfo]:
    """Read the directory of a zip archive, and check all of it except the sizes of entries.

    With `largest_bytes`, the directory's size is checked before it is read.

    Raises:
        ArchiveError: see `check_archive`.
    """
    entries = _directory(file, what, largest_bytes)
    if len(entries) > MAX_ENTRIES:
        raise ArchiveError(f"{what} has {len(entries)} entries; at most {MAX_ENTRIES} are allowed")
    paths: set[PurePosixPath] = set()
    for entry in entries:
        path = _checked_path(entry, what)
        if path in paths:
            raise ArchiveError(f"{what} contains {entry.filename!r} twice")
        paths.add(path)
    return entries


def read_entries(file: IO[bytes], what: str, names: Iterable[str]) -> Iterator[bytes]:
    """Read entries of a checked archive, each as it is needed.

    Raises:
        ArchiveError: if one is damaged.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            for name in names:
                yield read_entry(archive, archive.getinfo(name))
    except DAMAGE as error:
        raise ArchiveError(f"{what} is damaged: {error}") from error


def read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """Unpack an entry, and no more than the size that the directory states.

    `ZipFile.read` unpacks everything first, a thousandfold if the stated size is false.

    Raises:
        Exception: one of `DAMAGE`.
    """
    with archive.open(entry) as stream:
        return stream.read(entry.file_size)


def _directory(file: IO[bytes], what: str, largest_bytes: int | None) -> list[zipfile.ZipInfo]:
    try:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        # With data in front of it, a file may be valid in two formats.
        if file.read(len(BEGINNING)) != BEGINNING:
            raise ArchiveError(f"{what} is not a zip archive: it does not begin as one")
        _check_end(file, size, what, largest_bytes)
        with zipfile.ZipFile(file) as archive:
            return archive.infolist()
    except ArchiveError:
        raise
    except DAMAGE as error:
        raise ArchiveError(f"{what} is not a zip archive: {error}") from error
    finally:
        file.seek(0)


def _check_end(file: IO[bytes], size: int, what: str, largest_bytes: int | None) -> None:
    """Check that every reader finds the same directory: a single end, right after the directory.

    Python reads the ZIP64 record before the locator, torch the one that the locator points to.
    """
    file.seek(max(0, size - END.size))
    fields = END.unpack(file.read(END.size).rjust(END.size, b"\0"))
    signature, directory_size, directory_at = fields[0], fields[5], fields[6]
    end = size - END.size
    if signature != END_SIGNATURE:
        raise ArchiveError(
            f"{what} is not a zip archive: it does not end as one, and may be incomplete"
        )
    file.seek(max(0, end - LOCATOR.size))
    locator = file.read(LOCATOR.size)
    if locator.startswith(LOCATOR_SIGNATURE):
        end -= LOCATOR.size + END64.size
        file.seek(max(0, end))
        record = END64.unpack(file.read(END64.size).ljust(END64.size, b"\0"))
        directory_size, directory_at = record[8], record[9]
        if LOCATOR.unpack(locator)[2] != end or record[0] != END64_SIGNATURE:
            raise ArchiveError(f"{what} has two directories: its ZIP64 locator points elsewhere")
    if directory_at + directory_size != end:
        raise ArchiveError(f"{what} has data between its directory and its end")
    if largest_bytes is not None and directory_size > largest_bytes:
        raise ArchiveError(
            f"{what} has a directory of {directory_size} bytes, the limit is {largest_bytes}: it "
            "has too many entries"
        )


def _is_stored(path: PurePosixPath) -> bool:
    """Whether torch writes such an entry uncompressed."""
    in_folder = len(path.parts) > 2 and path.parts[1] in STORED_FOLDERS
    return in_folder or path.suffix == STORED_SUFFIX


def _checked_path(entry: zipfile.ZipInfo, what: str) -> PurePosixPath:
    name = entry.orig_filename  # `filename` ends before the first zero byte
    path = PurePosixPath(name)
    leads_out = path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name
    if leads_out or not path.parts or not name.isprintable():
        raise ArchiveError(f"{what} contains {name!r}, a path that leads out of its folder")
    if stat.S_IFMT(entry.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise ArchiveError(f"{what} contains {name!r}, which is a link or a device")
    if entry.flag_bits & ENCRYPTED_FLAG:
        raise ArchiveError(f"{what} contains {name!r}, which is encrypted")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ArchiveError(
            f"{what} contains {name!r}, packed by method {entry.compress_type}; only stored and "
            "deflated files are unpacked"
        )
    return path
