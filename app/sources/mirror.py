"""A mirror of a store's repository on this machine: its folders, its lock, requests for a look."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from app.sources.state import StateFile
from app.types import ModelId
from models.manifest import MANIFEST_FILE
from models.stores.urls import StoreUrl
from models.system.durable import locked

LOCK_FILE, TICKET_FILE = "lock", "ticket"
MIRRORS = "mirrors"  # folder in a cache
WANTS = "wants"  # folder in a mirror


class MirrorFolder:
    """Paths of one mirror; the process that holds the lock writes, all others only read.

    Args:
        folder: contains all of it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.repository = self.folder / "repository"
        self.partials = self.folder / "partial"
        self.wants = self.folder / WANTS
        self.damaged = self.folder / "damaged"
        self.state = StateFile(self.folder)

    def create(self) -> None:
        """Create the folders.

        Raises:
            OSError: if that is impossible.
        """
        for each in (self.repository, self.partials, self.wants, self.damaged):
            each.mkdir(parents=True, exist_ok=True)

    def kept(self) -> contextlib.AbstractContextManager[None]:
        """Be the process that keeps the mirror during a block.

        Raises:
            BlockingIOError: if another process is.
            OSError: if its file cannot be opened.
        """
        return locked(self.folder / LOCK_FILE)


class Mirror(MirrorFolder):
    """The mirror of one store.

    Args:
        cache: the folder of the cache.
        url: of the repository in the store.
        whose: what else sets it apart: the service, and the trusted keys, as it has only what they
            allow.
    """

    def __init__(self, cache: Path, url: StoreUrl, whose: str = "") -> None:
        name = hashlib.sha256(f"{url}\n{whose}".encode()).hexdigest()[:24]
        super().__init__(cache / MIRRORS / name)
        self.url = url

    def manifests(self) -> dict[str, Path]:
        """The manifest of each version, by MODEL/VERSION; removes what a kill has left behind.

        Raises:
            OSError: if the mirror cannot be read.
        """
        found = {}
        for folder in self.repository.glob("*/*"):
            manifest = folder / MANIFEST_FILE
            if folder.name.startswith(".") or not manifest.is_file():
                shutil.rmtree(folder, ignore_errors=True)
            else:
                found[f"{folder.parent.name}/{folder.name}"] = manifest
        return found

    def report_damaged(self, model: ModelId) -> None:
        """Have a version fetched again whose files are not as they came."""
        with contextlib.suppress(OSError):
            (self.damaged / str(model).replace("/", ",")).touch()

    def has_versions(self) -> bool:
        """Whether any version is there."""
        return any(self.repository.glob("*/[1-9]*"))

    def ask(self) -> int:
        """Request a look at the store.

        Returns:
            The ticket: the look has ended once the state has it or a later one.

        Raises:
            OSError: if the request cannot be written.
        """
        with self._ticket(fcntl.LOCK_EX) as descriptor:
            ticket = self._read_ticket(descriptor) + 1
            os.pwrite(descriptor, f"{ticket:20}".encode(), 0)
            return ticket

    def asked(self) -> int:
        """The latest ticket.

        Raises:
            OSError: if it cannot be read.
        """
        with self._ticket(fcntl.LOCK_SH) as descriptor:
            return self._read_ticket(descriptor)

    @contextlib.contextmanager
    def _ticket(self, how: int) -> Iterator[int]:
        file = self.folder / TICKET_FILE
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, how)
            yield descriptor
        finally:
            os.close(descriptor)

    @staticmethod
    def _read_ticket(descriptor: int) -> int:
        text = os.pread(descriptor, 20, 0).strip()
        return int(text) if text.isdigit() else 0


def mirrors_of(cache: Path) -> list[MirrorFolder]:
    """All mirrors in a cache."""
    return [MirrorFolder(each) for each in (cache / MIRRORS).iterdir() if (each / WANTS).is_dir()]
