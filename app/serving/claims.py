"""The digests that a server serves, shared by its processes.

A process that serves a version claims it with its digest. The claim of a process that has died
passes to those that replace it: a crash, even of all processes, never changes what a version
answers.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Iterator

from app.shared_file import SharedFile
from app.types import ModelId

DEAD = -1  # in place of a process


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
            processes = by_digest[digest]
            if self._process not in processes:
                by_digest[digest] = [*(each for each in processes if each != DEAD), self._process]
                self._put(claimed)
            return digest

    def release(self, model: ModelId) -> None:
        """End this process's claim on a version, if there is one."""

        def without(name: str, processes: list[int]) -> list[int]:
            if name != str(model) or self._process not in processes:
                return processes
            left = [each for each in processes if each != self._process]
            return [] if left == [DEAD] else left

        self._change(without)

    def bury(self) -> None:
        """Keep the claims of this process, which has died, until they pass to another one."""

        def dead(_: str, processes: list[int]) -> list[int]:
            return sorted({DEAD if each == self._process else each for each in processes})

        self._change(dead)

    def forget_dead(self, name: str, versions: Collection[int]) -> None:
        """End the claims of dead processes on a model's versions other than these."""
        kept = {str(ModelId(name, version)) for version in versions}

        def wanted(claimed: str, processes: list[int]) -> list[int]:
            is_other = claimed.rpartition("/")[0] != name or claimed in kept
            return processes if is_other or processes != [DEAD] else []

        self._change(wanted)

    def _change(self, change: Callable[[str, list[int]], list[int]]) -> None:
        """Replace the processes of each claim; a claim without any ends."""
        with self._claimed() as claimed:
            changed = {
                model: {digest: left}
                for model, by_digest in claimed.items()
                for digest, processes in by_digest.items()
                if (left := change(model, processes))
            }
            if changed != claimed:
                self._put(changed)

    @contextlib.contextmanager
    def _claimed(self) -> Iterator[dict[str, dict[str, list[int]]]]:
        """The processes that claim each version, by its digest; locked meanwhile."""
        with self._file.locked(waits=True):
            yield json.loads(self._file.content() or b"{}")

    def _put(self, claimed: dict[str, dict[str, list[int]]]) -> None:
        self._file.put(json.dumps(claimed).encode())
