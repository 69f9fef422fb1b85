"""What is known of a source, in a file that all processes of the machine read."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import BaseModel, ValidationError

from models.stores.urls import WRITABLE, StoreUrl
from models.system.durable import replacing

STATE_FILE = "state.json"


class MirroredVersion(BaseModel):
    """A version that is in the mirror.

    Attributes:
        digest: SHA-256 of its manifest.
        etag: of the manifest in the store; None: the store has none.
        signature: the ETag of the signature's file, "" if there is none; None: unknown.
        missing_since: time of the first successful listing in a row that lacked it; None: the last
            one has it.
    """

    digest: str
    etag: str | None = None
    signature: str | None = None
    missing_since: float | None = None


class State(BaseModel):
    """The state of a source; versions are named as MODEL/VERSION.

    Attributes:
        url: of the repository in the store.
        ticket: the latest request for a look that was answered.
        looked_at: time of the last look, in seconds since 1970.
        succeeded_at: time of the last look that saw everything; None: there was none.
        problem: why the last look did not see everything.
        versions: those in the mirror.
        refused: why versions are not in the mirror that should be.
        changed: the digests of manifests that changed in the store after they were mirrored.
        ignored: a folder with a manifest whose place is not MODEL/VERSION.
    """

    url: str = ""
    ticket: int = 0
    looked_at: float = 0
    succeeded_at: float | None = None
    problem: str | None = None
    versions: dict[str, MirroredVersion] = {}
    refused: dict[str, str] = {}
    changed: dict[str, str] = {}
    ignored: str | None = None

    def why_empty(self, url: StoreUrl) -> str:
        """Why there are no models from a store."""
        if self.problem is not None:
            return f"no models have come from {url}: {self.problem}"
        if self.succeeded_at is None:
            return f"nothing has been fetched from {url} yet"
        empty = f"{url} has no MODEL/VERSION with a manifest.json"
        if self.ignored is not None:
            parts = [*filter(None, self.ignored.split("/"))]
            found = "/".join([*parts, "manifest.json"])
            if len(parts) < 2:  # MODEL and VERSION
                return f"{empty}, but {found}; choose a folder further up"
            if len(parts) > 2:
                return f"{empty}, but {found}; choose the folder of all models"
            return f"{empty}, but {found}; a version is a number, such as {parts[0]}/1"
        return f"{empty}; `torchlane export` writes one" + (
            f" with --out {url}" if url.scheme in WRITABLE else " into a folder"
        )


class StateFile:
    """Reads and writes the state; reads it again only if it was replaced."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / STATE_FILE
        self._last: tuple[tuple[int, int], State] | None = None  # replaced as a whole, by threads

    def read(self) -> State:
        """The current state, not to be changed; a new one if there is none, or it is damaged."""
        try:
            found = os.stat(self._file)
            stamp, last = (found.st_ino, found.st_mtime_ns), self._last
            if last is None or last[0] != stamp:
                self._last = last = stamp, State.model_validate_json(self._file.read_bytes())
        except (OSError, ValidationError):
            return State()
        return last[1]

    def write(self, state: State) -> None:
        """Replace the state.

        Raises:
            OSError: if that is impossible, for example because the disk is full.
        """
        with replacing(self._file) as file:
            file.write(state.model_dump_json().encode())
