"""Downloads the files of a version: parts ahead in parallel, checked in order while they arrive.

What has arrived stays in a partial file if the process is killed, and the next download continues
there.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

from app.sources.cache import Cache, is_full
from models.manifest import FileDigest
from models.stores.base import Store
from models.stores.errors import TooLarge

PART = 4 << 20  # bytes of a request
AHEAD = 8  # requests in flight; each holds a part in memory
PIECE = 1 << 20  # bytes that are read at once from a partial file


class Damaged(Exception):
    """A file in the store is not what the manifest says; the message names both."""


class _Part(NamedTuple):
    name: str
    file: FileDigest
    start: int
    stop: int


class Download:
    """Brings the files of one version into the cache.

    Args:
        store: contains them.
        cache: gets them.
        partials: folder of files that are not complete.

    Attributes:
        nbytes: bytes that the store has sent.
    """

    def __init__(self, store: Store, cache: Cache, partials: Path) -> None:
        self._store = store
        self._cache = cache
        self._partials = partials
        self.nbytes = 0
        self._name = ""
        self._writing: BinaryIO | None = None
        self._digest = hashlib.sha256()

    async def bring(self, folder: str, files: Mapping[str, FileDigest]) -> None:
        """Download what is not in the cache.

        Args:
            folder: of the version in the store.
            files: names and digests.

        Raises:
            Damaged: if a file differs from its digest; nothing of it stays.
            StoreError: if the store does not answer; what has arrived stays for the next time.
            OSError: if it cannot be written.
        """
        wanted = {file.sha256: (name, file) for name, file in files.items()}
        missing = [each for each in wanted.values() if not self._cache.has(each[1])]
        parts = iter([part for name, file in missing for part in self._parts(name, file)])
        ahead: deque[tuple[_Part, asyncio.Task[list[memoryview]]]] = deque()
        try:
            while True:
                while len(ahead) < AHEAD and (part := next(parts, None)) is not None:
                    ahead.append((part, asyncio.create_task(self._read(folder, part))))
                if not ahead:
                    return
                part, task = ahead.popleft()
                try:
                    pieces = await task
                finally:
                    task.cancel()
                await self._take(part, pieces)
        except TooLarge as error:
            raise Damaged(str(error)) from None
        finally:
            for _, task in ahead:
                task.cancel()
            await asyncio.gather(*(task for _, task in ahead), return_exceptions=True)
            await self._store.stop_reading()
            self._close()

    def _parts(self, name: str, file: FileDigest) -> Iterator[_Part]:
        start = self._arrived(file)
        while True:
            stop = min(start + PART, file.bytes)
            yield _Part(name, file, start, stop)
            start = stop
            if start >= file.bytes:
                return

    def _arrived(self, file: FileDigest) -> int:
        """Bytes that an earlier download has left."""
        partial = self._partial(file)
        try:
            size = partial.stat().st_size
        except FileNotFoundError:
            return 0
        if size > file.bytes:
            partial.unlink()
            return 0
        return size

    async def _read(self, folder: str, part: _Part) -> list[memoryview]:
        if part.start == part.stop:
            return []
        key = f"{folder}/{part.name}"
        pieces = await self._store.read_range(key, part.start, part.stop, part.file.bytes)
        nbytes = sum(each.nbytes for each in pieces)
        self.nbytes += nbytes
        if nbytes != part.stop - part.start:
            raise Damaged(
                f"the store sent {nbytes:,} bytes of {part.name} for "
                f"{part.stop - part.start:,}; export the model again"
            )
        return pieces

    async def _take(self, part: _Part, pieces: list[memoryview]) -> None:
        """Write and digest a part, in order; after the last one, check the file."""
        partial = self._partial(part.file)
        if self._writing is None:
            self._digest = hashlib.sha256()
            self._writing = partial.open("ab+")
            self._writing.seek(0)
            _update(self._digest, iter(functools.partial(self._writing.read, PIECE), b""))
        try:
            loop = asyncio.get_running_loop()
            digesting = loop.run_in_executor(None, _update, self._digest, pieces)  # meanwhile
            try:
                self._writing.writelines(pieces)
                self._writing.flush()
            finally:
                await digesting
            if part.stop < part.file.bytes:
                return
            self._close()
        except OSError as error:
            if is_full(error):  # it would keep the disk full
                partial.unlink(missing_ok=True)
            raise
        found = self._digest.hexdigest()
        if found != part.file.sha256:
            partial.unlink()
            raise Damaged(
                f"{part.name} in the store has SHA-256 {found}, the manifest says "
                f"{part.file.sha256}; export the model again"
            )
        self._cache.add(partial, part.file)

    def _partial(self, file: FileDigest) -> Path:
        return self._partials / file.sha256

    def _close(self) -> None:
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.close()


def _update(digest: hashlib._Hash, pieces: Iterable[bytes | memoryview]) -> None:
    for piece in pieces:
        digest.update(piece)
