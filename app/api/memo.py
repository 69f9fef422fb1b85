"""Answers to repeated bodies, found without parsing the body again."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from typing import TypeAlias

from cachetools import LRUCache

from app.types import ModelId

ONCE = 1 << 14  # hashes of bodies seen once, in each of two generations
UNUSED = 1 << 10  # after this many bodies without an answer, only one in WATCHED is examined
WATCHED = 8
SAMPLES = 256  # octets that stand for a body: 0.7 us, while its digest takes 4 for 5 KB
ENTRY_OVERHEAD_BYTES = 400  # of a cachetools LRU cache's tables, the object and the tuple
HEADER_BYTES = 160  # of the tuple, its two strings and its place
Written: TypeAlias = tuple[tuple[tuple[bytes, bytes], ...], bytes]  # headers and body of an answer


@dataclass(frozen=True, slots=True)
class Remembered:
    """A request whose items were all in the cache.

    Attributes:
        keys: the keys of its items.
        written: the answer.
    """

    keys: tuple[bytes, ...]
    written: Written


class AnswerMemo:
    """Maps the digest of a body to the keys of its items and the answer.

    A body is digested when it seems to have arrived before: the memo compares octets at even
    distances, by their hash, which costs little however large a body is. Different bodies that
    agree there cost a digest each, and their digests differ. While no answer is used again, only an
    eighth of the bodies are examined, chosen by these octets. The prediction cache decides whether
    an answer still holds: an entry here is used only while all its keys are in that cache.

    Owned by the event loop.

    Args:
        capacity_bytes: 0 turns the memo off.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._on = capacity_bytes > 0
        self._entries: LRUCache[bytes, Remembered] = LRUCache(capacity_bytes, getsizeof=_cost)
        self._once: set[int] = set()
        self._once_before: set[int] = set()
        self._unused = 0  # bodies examined since an answer was last used

    @property
    def used_bytes(self) -> int:
        """Bytes of all entries, with their overhead."""
        return int(self._entries.currsize)

    def has_come_before(self, body: bytes) -> bool:
        """Whether this body seems to have arrived before, and is worth a digest."""
        if not self._on:
            return False
        # An odd distance, or all octets could be the same one of each number's four.
        sample = hash(body[:: len(body) // SAMPLES | 1])
        if self._unused >= UNUSED and sample % WATCHED:
            return False
        self._unused += 1
        if sample in self._once or sample in self._once_before:
            return True
        if len(self._once) >= ONCE:
            self._once, self._once_before = set(), self._once
        self._once.add(sample)
        return False

    def digest(self, model: ModelId, identity: str, text: str, body: bytes) -> bytes:
        """Digest of a request.

        Args:
            model: the name and version that the answer will show.
            identity: what the keys of its items belong to, see `Engine.identity`.
            text: what else determines the answer, such as the Content-Type.
            body: as the caller sent it.
        """
        digest = hashlib.sha256(f"{model}|{identity}|{text}\n".encode())
        digest.update(body)
        return digest.digest()

    def get(self, digest: bytes) -> Remembered | None:
        """The remembered request with this digest."""
        remembered = self._entries.get(digest)
        if remembered is not None:
            self._unused = 0
        return remembered

    def put(self, digest: bytes, remembered: Remembered) -> None:
        """Remember a request, unless it is larger than the whole memo."""
        if _cost(remembered) <= self._entries.maxsize:
            self._entries[digest] = remembered


def _cost(remembered: Remembered) -> int:
    headers, content = remembered.written
    return (
        sum(sys.getsizeof(key) for key in remembered.keys)
        + sys.getsizeof(remembered.keys)
        + sys.getsizeof(content)
        + HEADER_BYTES * len(headers)
        + ENTRY_OVERHEAD_BYTES
    )
