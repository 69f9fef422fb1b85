"""The known API keys, from the environment and from a file that may change at any time."""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import structlog

from app.access.entries import ApiKey, EntryError, digest_of, parse_entries
from models.byte_order import NotUtf8Error, unmarked

LOG = structlog.get_logger(__name__)
CHECK_EVERY_S = 1.0
MAX_FILE_BYTES = 4 << 20
MAX_SECRET_BYTES = 512
# Keys are found by the first bytes of their digests, then compared in full, in constant time.
# Timing could reveal only digests, which do not help to guess a key.
INDEX_BYTES = 8
NO_DIGEST = bytes(32)

# State of a file, which differs after each write and each replacement.
Stamp = tuple[int, int, int, int]


class Keyring:
    """Finds keys by their digests.

    The file is checked when a key is looked up, at most once a second. If it is wrong, empty or
    missing, the keys stay as they are: an edit must not lock out every caller.

    Args:
        entries: lines from the environment, separated by semicolons or newlines; may be None.
        file: a file with one key per line; may be None.
        clock: monotonic, in seconds.

    Attributes:
        configured: whether callers must send a key.

    Raises:
        EntryError: if the entries or the file are wrong now.
    """

    def __init__(self, entries: str | None, file: Path | None, clock: Callable[[], float]) -> None:
        self.configured = entries is not None or file is not None
        self._fixed = () if entries is None else _fixed(entries)
        self._file = file
        self._clock = clock
        self._checked_at = clock()
        self._stamp = _stamp(file) if file is not None else None
        self._keys = self._read(file)

    @property
    def has_limits(self) -> bool:
        """Whether a key has a rate limit of its own."""
        return any(key.limits for key in self._keys.values())

    def find(self, secret: bytes) -> ApiKey | None:
        """The key with this secret; None if unknown."""
        if self._file is not None and self._clock() - self._checked_at >= CHECK_EVERY_S:
            self._read_if_changed(self._file)
        if len(secret) > MAX_SECRET_BYTES:
            return None
        digest = digest_of(secret)
        key = self._keys.get(digest[:INDEX_BYTES])
        same = hmac.compare_digest(digest, key.digest if key is not None else NO_DIGEST)
        return key if same else None

    def _read_if_changed(self, file: Path) -> None:
        self._checked_at = self._clock()
        stamp = _stamp(file)
        if stamp == self._stamp:
            return
        self._stamp = stamp  # also for a wrong file, so that it is reported once
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
            raise EntryError(f"{file}: contains a key that is also in TORCHLANE_API_KEYS")
        return index


def _fixed(entries: str) -> tuple[ApiKey, ...]:
    try:
        keys = parse_entries(entries.replace(";", "\n").splitlines(), "entry")
    except EntryError as error:
        raise EntryError(f"TORCHLANE_API_KEYS: {error}") from None
    return _not_empty(keys, "TORCHLANE_API_KEYS")


def _of_file(file: Path) -> tuple[ApiKey, ...]:
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise EntryError(f"TORCHLANE_API_KEYS_FILE={file}: {error.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise EntryError(f"TORCHLANE_API_KEYS_FILE={file}: larger than {MAX_FILE_BYTES} bytes")
    try:
        keys = parse_entries(unmarked(data).decode().splitlines())
    except NotUtf8Error as error:
        raise EntryError(f"TORCHLANE_API_KEYS_FILE={file}: not UTF-8 text: {error}") from None
    except UnicodeDecodeError:
        raise EntryError(f"TORCHLANE_API_KEYS_FILE={file}: not UTF-8 text") from None
    except EntryError as error:
        raise EntryError(f"TORCHLANE_API_KEYS_FILE={file}: {error}") from None
    return _not_empty(keys, f"TORCHLANE_API_KEYS_FILE={file}")


def _not_empty(keys: Iterable[ApiKey], where: str) -> tuple[ApiKey, ...]:
    found = tuple(keys)
    if not found:
        raise EntryError(f"{where}: no key found; `python -m app.access NAME` creates one")
    return found


def _stamp(file: Path) -> Stamp | None:
    try:
        found = os.stat(file)  # follows links: secrets are often rotated by replacing the link
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
