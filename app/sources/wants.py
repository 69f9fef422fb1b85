"""Which versions the processes of a machine want of a source, in a locked file of each process.

The lock ends with the process, however it ends; then its file counts no more.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ValidationError

NEW = ".new"


class Wants(BaseModel):
    """What a process wants.

    Attributes:
        policy: its TORCHLANE_VERSIONS.
        models: the only models that it wants; None: all.
        versions: MODEL/VERSION of what it uses, or was asked for, in addition to the policy.
    """

    policy: str
    models: tuple[str, ...] | None = None
    versions: frozenset[str] = frozenset()


class OwnWants:
    """The file of this process.

    Args:
        folder: contains the files of all processes.

    Raises:
        OSError: if it cannot be created.
    """

    def __init__(self, folder: Path) -> None:
        self._descriptor, name = tempfile.mkstemp(suffix=NEW, dir=folder)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        self._file = Path(name).with_suffix("")  # others look at it from now on: it is locked
        Path(name).rename(self._file)
        self._put: bytes = b""

    def put(self, wants: Wants) -> None:
        """Replace what this process wants.

        Raises:
            OSError: if it cannot be written.
        """
        content = wants.model_dump_json().encode()
        if content != self._put.rstrip():
            # JSON may end with spaces: they take the room first, so that a full disk fails before
            # the earlier wants are touched, and these are replaced in one call.
            self._write(b" " * (len(content) - len(self._put)), len(self._put))
            self._put = self._put.ljust(len(content))
            content = content.ljust(len(self._put))
            self._write(content, 0)
            self._put = content

    def _write(self, content: bytes, at: int) -> None:
        """Write all of it, also if the system takes a part at a time."""
        while content:
            written = os.pwrite(self._descriptor, content, at)
            content, at = content[written:], at + written

    def close(self) -> None:
        """Want nothing any more."""
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)
        os.close(self._descriptor)


def wants_of_all(folder: Path) -> Iterator[Wants]:
    """What all living processes want; files of dead ones are removed."""
    for file in folder.iterdir():
        with contextlib.suppress(OSError, ValidationError):  # gone, or being written
            with file.open("rb") as opened:
                if _is_locked(opened.fileno()):
                    yield Wants.model_validate_json(opened.read())
                    continue
            if file.suffix != NEW:
                file.unlink()


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
