"""The known API keys, from the environment and from a file that may change at any time."""

from __future__ import annotations

import asyncio
import hmac
import os
from collections.abc import Iterable
from pathlib import Path

import structlog

from app.access.entries import ApiKey, EntryError, digest_of, parse_entries
from app.threads import in_thread
from models.system.byte_order import NotUtf8Error, strip_byte_order_mark
from models.system.contained import FileRejected, read_named

LOG = structlog.get_logger(__name__)
CHECK_EVERY_S = 1.0
MAX_FILE_BYTES = 4 << 20  # MAX_KEYS lines of 400 bytes; one without comments has about 100
MAX_SECRET_BYTES = 512
# Keys are found by the first bytes of their digests, then compared in full, in constant time.
# Timing could reveal only digests, which do not help to guess a key.
INDEX_BYTES = 8
NO_DIGEST = bytes(32)

# State of a file, which differs after each write and each replacement.
Stamp = tuple[int, int, int, int, int]


class Keyring:
    """Finds keys by their digests.

    `follow` checks the file every second. If it is wrong, empty or missing, the keys stay as they
    are: an edit must not lock out every caller.

    Args:
        entries: lines from the environment, separated by semicolons or newlines; may be None.
        file: a file with one key per line; may be None.

    Attributes:
        is_configured: whether callers must send a key.

    Raises:
        EntryError: if the entries or the file are wrong now.
    """

    def __init__(self, entries: str | None, file: Path | None) -> None:
        self.is_configured = entries is not None or file is not None
        self._environment_keys = () if entries is None else _of_environment(entries)
        self._file = file
        self._problem: str | None = None  # of the file, as logged
        self._stamp = _stamp(file) if file is not None else None
        self._keys = self._read(file)

    @property
    def has_limits(self) -> bool:
        """Whether a key has a rate limit of its own."""
        return any(key.limits for key in self._keys.values())

    def find(self, secret: bytes) -> ApiKey | None:
        """The key with this secret; None if unknown."""
        if len(secret) > MAX_SECRET_BYTES:
            return None
        digest = digest_of(secret)
        key = self._keys.get(digest[:INDEX_BYTES])
        same = hmac.compare_digest(digest, key.digest if key is not None else NO_DIGEST)
        return key if same else None

    async def follow(self) -> None:
        """Check the file every second, in a thread: a disk may be slow, and parsing takes time."""
        while self._file is not None:
            await asyncio.sleep(CHECK_EVERY_S)
            try:
                await in_thread(self.look)
            except Exception as bug:  # a key that is removed must still stop working
                self._stamp = None
                if repr(bug) != self._problem:
                    LOG.exception("api_keys_not_read", kept=len(self._keys))
                self._problem = repr(bug)

    def look(self) -> None:
        """Read the file if it has changed; a wrong one is reported once, and changes nothing."""
        if self._file is None:
            return
        stamp = _stamp(self._file)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._keys = self._read(self._file)
        except EntryError as error:
            if isinstance(error.__context__, OSError):
                self._stamp = None  # it may be readable the next time without a change
            if str(error) != self._problem:
                LOG.error("api_keys_not_changed", reason=str(error), kept=len(self._keys))
            self._problem = str(error)
            return
        self._problem = None
        LOG.info("api_keys_changed", file=str(self._file), keys=len(self._keys))

    def _read(self, file: Path | None) -> dict[bytes, ApiKey]:
        keys = self._environment_keys
        if file is not None:
            keys += _of_file(file)
        index = {key.digest[:INDEX_BYTES]: key for key in keys}
        if len(index) < len(keys):
            raise EntryError(f"{file}: contains a key that is also in TORCHLANE_API_KEYS")
        return index


def _of_environment(entries: str) -> tuple[ApiKey, ...]:
    try:
        keys = parse_entries(entries.replace(";", "\n").splitlines(), "entry")
    except EntryError as error:
        raise EntryError(f"TORCHLANE_API_KEYS: {error}") from None
    return _not_empty(keys, "TORCHLANE_API_KEYS")


def _of_file(file: Path) -> tuple[ApiKey, ...]:
    try:
        data = read_named(file, MAX_FILE_BYTES)
    except OSError as error:
        raise EntryError(f"TORCHLANE_API_KEYS_FILE={file}: {error.strerror}") from None
    except FileRejected as error:
        raise EntryError(f"TORCHLANE_API_KEYS_FILE={file}: {error}") from None
    try:
        keys = parse_entries(strip_byte_order_mark(data).decode().splitlines())
    except NotUtf8Error as error:
        raise EntryError(f"TORCHLANE_API_KEYS_FILE={file}: not UTF-8 text: {error}") from None
    except UnicodeDecodeError:
        raise EntryError(f"TORCHLANE_API_KEYS_FILE={file}: not UTF-8 text") from None
    except EntryError as error:
        raise EntryError(f"TORCHLANE_API_KEYS_FILE={file}: {error}") from None
    return _not_empty(keys, f"TORCHLANE_API_KEYS_FILE={file}")


def _not_empty(entries: Iterable[ApiKey], where: str) -> tuple[ApiKey, ...]:
    keys = tuple(entries)
    if not keys:
        raise EntryError(f"{where}: no key found; `torchlane keys NAME` creates one")
    return keys


def _stamp(file: Path) -> Stamp | None:
    try:
        status = os.stat(file)  # follows links: secrets are often rotated by replacing the link
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
