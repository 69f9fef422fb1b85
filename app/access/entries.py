"""API keys: how they are created and written as lines, and what they allow.

    NAME  SCOPE[,SCOPE ...]  sha256:HEX  [LIMIT]

The key itself is never stored. It has 256 random bits, so one SHA-256 suffices without a slow hash.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from limits import RateLimitItem

PREDICT, ADMIN, METRICS = "predict", "admin", "metrics"
SCOPES = (PREDICT, ADMIN, METRICS)
KEY_PREFIX = "tl_"  # lets secret scanners recognize a leaked key
KEY_BYTES = 32
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
HASH = re.compile(r"sha256:([0-9a-f]{64})")
MAX_KEYS = 10_000


class EntryError(ValueError):
    """A wrong line; the message has its number and the reason, never its text: it may be a key."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """The record of a key.

    Attributes:
        name: the key's owner; several keys share a name during a rotation.
        scopes: what the key allows; no scope implies another.
        limits: rate limits, which all apply; None: the default limits.
    """

    name: str
    scopes: frozenset[str]
    digest: bytes = field(repr=False)
    limits: tuple[RateLimitItem, ...] | None = None


def digest_of(secret: bytes) -> bytes:
    """The digest stored for a key."""
    return hashlib.sha256(secret).digest()


def make_key(name: str, scopes: Iterable[str], limits: str = "") -> tuple[str, str]:
    """Create a key and its line.

    Raises:
        EntryError: if the line would not parse.
    """
    _check_name(name)  # text after a blank would become a scope
    secret = KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)
    digest = digest_of(secret.encode()).hex()
    line = " ".join((name, ",".join(scopes), f"sha256:{digest}", limits)).rstrip()
    parse_entries([line])
    return secret, line


def parse_entries(lines: Iterable[str], place: str = "line") -> tuple[ApiKey, ...]:
    """The keys in the given lines; empty lines and comments after a # are skipped.

    Args:
        lines: the text.
        place: the word for a line in errors, before its number.

    Raises:
        EntryError: at the first wrong line.
    """
    keys: dict[bytes, ApiKey] = {}
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            key = _parse(text)
            if key.digest in keys:
                raise EntryError("duplicate key")
            if len(keys) >= MAX_KEYS:
                raise EntryError(f"too many keys: at most {MAX_KEYS} are allowed")
        except ValueError as error:
            raise EntryError(f"{place} {number}: {error}") from None
        keys[key.digest] = key
    return tuple(keys.values())


def parse_limits(text: str) -> tuple[RateLimitItem, ...]:
    """Rate limits such as `100/second` or `10 per 5 second, 1000/hour`.

    Raises:
        EntryError: if the text is malformed.
    """
    from limits import parse_many  # noqa: PLC0415 # takes as long as all of a command's `--help`

    try:
        limits = tuple(parse_many(text))
    except ValueError:
        limits = ()
    if not limits or any(limit.amount < 1 for limit in limits):
        raise EntryError(
            "a rate limit is a number of items per time, such as 100/second or 5000/hour"
        )
    return limits


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise EntryError("a name has at most 64 letters, digits, dots, dashes and underscores")


def _parse(text: str) -> ApiKey:
    name, scopes, digest, limits, *_ = (*text.split(maxsplit=3), "", "", "", "")
    _check_name(name)
    scope_set = frozenset(scopes.split(","))
    if not scope_set <= set(SCOPES):
        raise EntryError(
            f"the name must be followed by scopes ({', '.join(SCOPES)}), separated by commas"
        )
    match = HASH.fullmatch(digest)
    if match is None:
        hint = "`torchlane keys NAME` creates a key and its line"
        raise EntryError(f"the scopes must be followed by sha256: and 64 hex digits; {hint}")
    return ApiKey(
        name, scope_set, bytes.fromhex(match[1]), parse_limits(limits) if limits else None
    )
