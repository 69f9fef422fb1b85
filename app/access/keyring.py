"""The API keys that are known, from the environment and from a file that may change at any time."""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import structlog

from app.access.entries import ApiKey, EntryError, digest_of, parse_entries

LOG = structlog.get_logger(__name__)
LOOK_EVERY_S = 1.0
MAX_FILE_BYTES = 4 << 20
MAX_SECRET_BYTES = 512
# Keys are found by the first bytes of their digests, and compared in constant time by all of them:
# what a clock could tell about a guess is about its digest, from which no guess is made better.
INDEX_BYTES = 8
NO_DIGEST = bytes(32)

# Of a file: changes whenever it was written to or another one took its place.
Stamp = tuple[int, int, int, int]


class Keyring:
    """Knows keys by their digests.

    The file is looked at when a key is asked for, once a second at most. One that is wrong, empty
    or gone leaves the keys as they are: whoever edits it does not lock out everybody.

    Args:
        entries: of the environment, separated by semicolons or lines; None: none.
        file: with a line for each key; None: none.
        clock: seconds, ever growing.

    Attributes:
        configured: whether callers must show a key.

    Raises:
        EntryError: if what is there now is wrong.
    """

    def __init__(self, entries: str | None, file: Path | None, clock: Callable[[], float]) -> None:
        self.configured = entries is not None or file is not None
        self._fixed = () if entries is None else _fixed(entries)
        self._file = file
        self._clock = clock
        self._looked = clock()
        self._stamp = _stamp(file) if file is not None else None
        self._keys = self._read(file)

    def find(self, secret: bytes) -> ApiKey | None:
        """The key that this is, if it is one."""
        if self._file is not None and self._clock() - self._looked >= LOOK_EVERY_S:
            self._look_again(self._file)
        if len(secret) > MAX_SECRET_BYTES:
            return None
        digest = digest_of(secret)
        key = self._keys.get(digest[:INDEX_BYTES])
        same = hmac.compare_digest(digest, key.digest if key is not None else NO_DIGEST)
        return key if same else None

    def _look_again(self, file: Path) -> None:
        self._looked = self._clock()
        stamp = _stamp(file)
        if stamp == self._stamp:
            return
        self._stamp = stamp  # of a file that is wrong too: it is told of once
        try:
            self._keys = self._read(file)
        except EntryError as error:
            LOG.error("api_keys_not_changed", reason=str(error), kept=len(self._keys))
            return
        LOG.info("api_keys_changed", file=str(file), keys=len(self._keys))

    def _read(self, file: Path | None) -> dict[bytes, ApiKey]:
        keys = self._fixed
        if file is not None:
            keys += _of_file(file)
        index = {key.digest[:INDEX_BYTES]: key for key in keys}
        if len(index) < len(keys):
            raise EntryError(f"{file}: it holds a key that TORCHLANE_API_KEYS holds as well")
        return index


def _fixed(entries: str) -> tuple[ApiKey, ...]:
    try:
        keys = parse_entries(entries.replace(";", "\n").splitlines(), "entry")
    except EntryError as error:
        raise EntryError(f"TORCHLANE_API_KEYS: {error}") from None
    return _some(keys, "TORCHLANE_API_KEYS")


def _of_file(file: Path) -> tuple[ApiKey, ...]:
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise EntryError(f"TORCHLANE_API_KEYS_FILE={file}: {error.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise EntryError(f"TORCHLANE_API_KEYS_FILE={file}: more than {MAX_FILE_BYTES} bytes")
    try:
        keys = parse_entries(data.decode().splitlines())
    except UnicodeDecodeError:
        raise EntryError(f"TORCHLANE_API_KEYS_FILE={file}: it is not UTF-8 text") from None
    except EntryError as error:
        raise EntryError(f"TORCHLANE_API_KEYS_FILE={file}: {error}") from None
    return _some(keys, f"TORCHLANE_API_KEYS_FILE={file}")


def _some(keys: Iterable[ApiKey], where: str) -> tuple[ApiKey, ...]:
    found = tuple(keys)
    if not found:
        raise EntryError(f"{where}: it holds no key; `python -m app.access NAME` makes one")
    return found


def _stamp(file: Path) -> Stamp | None:
    try:
        found = os.stat(file)  # of what a link leads to: secrets are often changed by their link
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
