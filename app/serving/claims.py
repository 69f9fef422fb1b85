"""The digests that a server serves, shared by its processes.

A process that serves a version claims it with its digest. The parent ends the claims of a process
that has died.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

from app.shared_file import SharedFile
from app.types import ModelId


class Claims:
    """The digests that one process and the server's other processes serve.

    All methods block for a few system calls.

    Args:
        file: shared by the processes.
        process: the number of this process.
    """

    def __init__(self, file: SharedFile, process: int) -> None:
        self._file = file
        self._process = process

    def served(self, model: ModelId) -> str | None:
        """The digest with which any process serves a version; None: none does."""
        with self._claimed() as claimed:
            return next(iter(claimed.get(str(model), {})), None)

    def claim(self, model: ModelId, digest: str) -> str:
        """Claim a version with a digest, unless it is claimed with another one.

        Returns:
            The digest with which the version is claimed now.
        """
        with self._claimed() as claimed:
            by_digest = claimed.setdefault(str(model), {digest: []})
            if digest not in by_digest:
                return next(iter(by_digest))
            if self._process not in by_digest[digest]:
                by_digest[digest].append(self._process)
                self._put(claimed)
            return digest

    def release(self, model: ModelId) -> None:
        """End this process's claim on a version, if there is one."""
        self._release({str(model)})

    def release_all(self) -> None:
        """End all claims of this process, which has died."""
        self._release(None)

    def _release(self, models: set[str] | None) -> None:
        with self._claimed() as claimed:
            kept: dict[str, dict[str, list[int]]] = {}
            for model, by_digest in claimed.items():
                for digest, processes in by_digest.items():
                    released = models is None or model in models
                    left = [each for each in processes if not (released and each == self._process)]
                    if left:
                        kept[model] = {digest: left}
            if kept != claimed:
                self._put(kept)

    @contextlib.contextmanager
    def _claimed(self) -> Iterator[dict[str, dict[str, list[int]]]]:
        """The processes that claim each version, by its digest; locked meanwhile."""
        with self._file.locked(waits=True):
            yield json.loads(self._file.content() or b"{}")

    def _put(self, claimed: dict[str, dict[str, list[int]]]) -> None:
        self._file.put(json.dumps(claimed).encode())
