"""Lock that allows one profile of a server at a time, in any of its workers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from app.errors import AlreadyRecording
from app.shared_file import SharedFile


class Turn:
    """Held by one profile at a time.

    Args:
        file: shared with the other workers; None if there are no others. It is locked while a
            profile is recorded, and contains the time of its end.
    """

    def __init__(self, file: SharedFile | None) -> None:
        self._file = file
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
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._file.locked(waits=False))
            except BlockingIOError:  # without a content, the profile has just begun
                raise _taken(float(self._file.content() or 0)) from None
            self._file.put(str(ends_at).encode())
            yield


def _taken(ends_at: float) -> AlreadyRecording:
    return AlreadyRecording(
        "the server is being profiled already; try again after the current profile",
        retry_after_s=max(1.0, ends_at - time.monotonic()),
    )
