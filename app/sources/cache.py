"""Files from stores on this machine, by their SHA-256; folders of versions are links to them."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from models.manifest import FileDigest

SPARE_BYTES = 64 << 20  # of the disk, for everything else
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class NoRoom(Exception):
    """The files fit neither the cache nor the disk; the message says what would help."""


class _Blob(NamedTuple):
    """A file; the last one of its links came or went at `changed_at`, in nanoseconds."""

    changed_at: int
    name: str
    nbytes: int
    links: int


class Cache:
    """Bounded by its own limit and by the disk; used by one thread of a process at a time.

    Several processes may use the folder: every change of it is one rename, link or removal.

    Args:
        folder: of the cache.
        limit: the most bytes in it, whatever they belong to.
        setting: the name of the setting with the limit, for messages.

    Raises:
        OSError: if the folder cannot be created.
    """

    def __init__(self, folder: Path, limit: int, setting: str) -> None:
        self.folder = folder
        self._limit = limit
        self._setting = setting
        self._blobs = folder / "blobs" / "sha256"
        self._blobs.mkdir(parents=True, exist_ok=True)

    def has(self, file: FileDigest) -> bool:
        """Whether a file is there; its content was checked when it came."""
        try:
            return self._blob(file).stat().st_size == file.bytes
        except OSError:
            return False

    def add(self, partial: Path, file: FileDigest) -> None:
        """Take over a complete file, whose digest was checked.

        Raises:
            OSError: if that is impossible.
        """
        partial.chmod(0o444)
        # Not flushed to the disk, which takes longer than the download: servers check every file
        # that they load, and a file that a power failure has damaged is fetched again.
        partial.rename(self._blob(file))

    def link(self, file: FileDigest, target: Path) -> None:
        """Make a file also appear elsewhere in the cache; a copy if there are no hard links.

        Raises:
            OSError: if that is impossible; FileNotFoundError: if it was removed meanwhile.
        """
        try:
            os.link(self._blob(file), target)
        except FileNotFoundError:
            raise
        except OSError:
            shutil.copyfile(self._blob(file), target)

    def drop(self, file: FileDigest) -> None:
        """Remove a file, for example because it is damaged; its links stay."""
        self._blob(file).unlink(missing_ok=True)

    def make_room(
        self, files: Mapping[str, FileDigest], partials: Path, droppable: Iterable[Path]
    ) -> list[Path]:
        """Remove what is not used until the files that are not there fit; nothing if they never do.

        First go files that belong to no version, those that were used last go last; then folders.

        Args:
            files: what is needed.
            partials: folder with what has arrived of them.
            droppable: folders that nobody needs, in the order in which they may go; asked for one
                after the other until there is room.

        Returns:
            The folders that were removed.

        Raises:
            NoRoom: if there is too little room without what is in use.
            OSError: if the cache cannot be read.
        """
        wanted = {file.sha256: file.bytes for file in files.values() if not self.has(file)}
        arrived = sum(each.stat().st_size for each in partials.iterdir() if each.name in wanted)
        needed = max(0, sum(wanted.values()) - arrived)
        used, free = sum(self._sizes().values()), shutil.disk_usage(self.folder).free
        over = max(used + needed - self._limit, needed + SPARE_BYTES - free)
        if over <= 0 or not needed:
            return []
        blobs = self._links()
        kept = {file.sha256 for file in files.values()}
        going = [
            each for each in sorted(blobs.values()) if each.links == 1 and each.name not in kept
        ]
        gone: list[Path] = []
        over -= sum(each.nbytes for each in going)
        left = {inode: each.links for inode, each in blobs.items()}
        unasked = iter(droppable)
        while over > 0 and (folder := next(unasked, None)) is not None:
            gone.append(folder)
            for file in os.scandir(folder):
                inode, blob = file.inode(), blobs.get(file.inode())
                if blob is None:  # only here, as a manifest or a copy
                    over -= file.stat(follow_symlinks=False).st_size
                    continue
                left[inode] -= 1
                if left[inode] == 1 and blob.name not in kept:
                    over -= blob.nbytes
                    going.append(blob)
        if over > 0:
            raise self._too_little(needed, used, free)
        for folder in gone:
            remove_folder(folder)
        for each in going:
            (self._blobs / each.name).unlink(missing_ok=True)
        return gone

    def _too_little(self, needed: int, used: int, free: int) -> NoRoom:
        if needed + SPARE_BYTES > free:
            return NoRoom(
                f"{needed:,} bytes are needed, and the disk of {self.folder} has {free:,} left: "
                "make room there, or choose another folder"
            )
        return NoRoom(
            f"{needed:,} bytes are needed, and of the {self._limit:,} that {self._setting} allows "
            f"{used:,} are in use: raise it, or serve fewer versions"
        )

    def _sizes(self) -> dict[int, int]:
        """Bytes of all files, by inode: links count once."""
        sizes = {}
        for parent, _, names in os.walk(self.folder):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    found = os.lstat(os.path.join(parent, name))
                    sizes[found.st_ino] = found.st_size
        return sizes

    def _links(self) -> dict[int, _Blob]:
        """The files by their inode."""
        found = {}
        for blob in self._blobs.iterdir():
            with contextlib.suppress(FileNotFoundError):
                stat = blob.stat()
                found[stat.st_ino] = _Blob(stat.st_ctime_ns, blob.name, stat.st_size, stat.st_nlink)
        return found

    def _blob(self, file: FileDigest) -> Path:
        return self._blobs / file.sha256


def remove_folder(folder: Path) -> None:
    """Remove a version in one step for its readers, then its files."""
    gone = folder.with_name(f".gone-{folder.name}")
    shutil.rmtree(gone, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)
    with contextlib.suppress(OSError):  # not the last version of the model
        folder.parent.rmdir()


def is_full(error: OSError) -> bool:
    """Whether an error says that the disk is full."""
    return error.errno in FULL
