"""An API key: how it is made, how its line is written, what it allows.

    NAME  SCOPE[,SCOPE ...]  sha256:HEX  [LIMIT]

The key itself is never written down: 256 random bits need no slow hash, one SHA-256 keeps them.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field

from limits import RateLimitItem, parse_many

PREDICT, ADMIN, METRICS = "predict", "admin", "metrics"
SCOPES = (PREDICT, ADMIN, METRICS)
KEY_PREFIX = "tl_"  # what scanners of code for forgotten keys look for
KEY_BYTES = 32
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
HASH = re.compile(r"sha256:([0-9a-f]{64})")
MOST_KEYS = 10_000


class EntryError(ValueError):
    """A line is wrong; the message says which and why, but repeats nothing: it may be a key."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is known of a key.

    Attributes:
        name: of whoever has it; several keys may share one while it is changed.
        scopes: what it allows; none implies another.
        digest: SHA-256 of the key.
        limits: all hold; None: the default.
    """

    name: str
    scopes: frozenset[str]
    digest: bytes = field(repr=False)
    limits: tuple[RateLimitItem, ...] | None = None


def digest_of(secret: bytes) -> bytes:
    """What is kept of a key."""
    return hashlib.sha256(secret).digest()


def make_key(name: str, scopes: Iterable[str], limits: str = "") -> tuple[str, str]:
    """A new key, and its line.

    Raises:
        EntryError: if the line would not be read.
    """
    _check_name(name)  # a blank in it would make a scope of its rest
    secret = KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)
    digest = digest_of(secret.encode()).hex()
    line = " ".join((name, ",".join(scopes), f"sha256:{digest}", limits)).rstrip()
    parse_entries([line])
    return secret, line


def parse_entries(lines: Iterable[str], place: str = "line") -> tuple[ApiKey, ...]:
    """The keys of some lines; empty ones and what follows a # are left out.

    Args:
        lines: as they were written.
        place: what a line is called in errors, before its number.

    Raises:
        EntryError: at the first line that is wrong.
    """
    keys: dict[bytes, ApiKey] = {}
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            key = _parse(text)
            if key.digest in keys:
                raise EntryError("this key stands above already")
            if len(keys) >= MOST_KEYS:
                raise EntryError(f"at most {MOST_KEYS} keys are taken")
        except ValueError as error:
            raise EntryError(f"{place} {number}: {error}") from None
        keys[key.digest] = key
    return tuple(keys.values())


def parse_limits(text: str) -> tuple[RateLimitItem, ...]:
    """Rate limits such as `100/second` or `10 per 5 second, 1000/hour`.

    Raises:
        EntryError: if that is not how one is written.
    """
    try:
        limits = tuple(parse_many(text))
    except ValueError:
        limits = ()
    if not limits or any(limit.amount < 1 for limit in limits):
        raise EntryError("a limit is a number of items by time, such as 100/second or 5000/hour")
    return limits


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise EntryError("a name has letters, digits, dots, dashes, underscores, at most 64")


def _parse(text: str) -> ApiKey:
    name, scopes, digest, limits, *_ = (*text.split(maxsplit=3), "", "", "", "")
    _check_name(name)
    wanted = frozenset(scopes.split(","))
    if not wanted <= set(SCOPES):
        raise EntryError(
            f"after the name stand scopes, of {', '.join(SCOPES)}, with commas between"
        )
    found = HASH.fullmatch(digest)
    if found is None:
        hint = "`python -m app.access NAME` makes a key and its line"
        raise EntryError(f"after the scopes stands sha256: and 64 hexadecimal digits; {hint}")
    return ApiKey(name, wanted, bytes.fromhex(found[1]), parse_limits(limits) if limits else None)
