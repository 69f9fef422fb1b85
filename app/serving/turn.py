"""One profile of a server at a time, whichever of its workers makes it."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path

from app.errors import AlreadyRecording

FILE = "profile"  # locked as long as a profile is made; it says until when


class Turn:
    """Taken by one at a time.

    Args:
        folder: shared with the other workers; None: there are none.
    """

    def __init__(self, folder: Path | None) -> None:
        self._file = folder / FILE if folder else None
        self._ends_at: float | None = None  # of the one in this process

    @contextlib.contextmanager
    def take(self, ends_at: float) -> Iterator[None]:
        """Have the turn, until this moment of `time.monotonic` as a rule.

        Raises:
            AlreadyRecording: another one has it.
        """
        if self._ends_at is not None:
            raise _taken(self._ends_at)
        with self._locked(ends_at):
            self._ends_at = ends_at
            try:
                yield
            finally:
                self._ends_at = None

    @contextlib.contextmanager
    def _locked(self, ends_at: float) -> Iterator[None]:
        """Keep the other workers out; a worker that dies keeps nobody out."""
        if self._file is None:
            yield
            return
        with self._file.open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise _taken(float(file.read() or 0)) from None  # empty: it has just begun
            file.truncate(0)
            file.write(str(ends_at))
            file.flush()
            yield


def _taken(ends_at: float) -> AlreadyRecording:
    return AlreadyRecording(
        "the server is being profiled already; try again when that has ended",
        retry_after_s=max(1.0, ends_at - time.monotonic()),
    )
