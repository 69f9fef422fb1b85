"""Lock that allows one profile of a server at a time, in any of its workers."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path

from app.errors import AlreadyRecording

FILE = "profile"  # locked while a profile is recorded; contains the time of its end


class Turn:
    """Held by one profile at a time.

    Args:
        folder: shared with the other workers; None if there are no others.
    """

    def __init__(self, folder: Path | None) -> None:
        self._file = folder / FILE if folder else None
        self._ends_at: float | None = None  # end of the profile in this process

    @contextlib.contextmanager
    def take(self, ends_at: float) -> Iterator[None]:
        """Hold the turn, usually until this time of `time.monotonic`.

        Raises:
            AlreadyRecording: if another profile holds it.
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
        """Lock out the other workers; the lock of a worker that dies is released."""
        if self._file is None:
            yield
            return
        with self._file.open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise _taken(float(file.read() or 0)) from None  # empty: the profile has just begun
            file.truncate(0)
            file.write(str(ends_at))
            file.flush()
            yield


def _taken(ends_at: float) -> AlreadyRecording:
    return AlreadyRecording(
        "the server is being profiled already; try again after the current profile",
        retry_after_s=max(1.0, ends_at - time.monotonic()),
    )
