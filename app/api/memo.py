"""Answers to repeated bodies, found without parsing the body again."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass

from cachetools import LRUCache

from app.codecs.base import NPY, OCTET_STREAM
from app.types import ModelId

ONCE = 1 << 14  # hashes of bodies seen once, in each of two generations
ENTRY_OVERHEAD_BYTES = 400  # of a cachetools LRU cache's tables, the object and the tuple
NOT_PARSED = frozenset({OCTET_STREAM, NPY})  # such a body is the array itself: nothing to save


@dataclass(frozen=True, slots=True)
class Remembered:
    """A request whose items were all in the cache.

    Attributes:
        keys: of its items.
        content: the JSON answer.
    """

    keys: tuple[bytes, ...]
    content: bytes


class AnswerMemo:
    """Maps the digest of a body to the keys of its items and the JSON answer.

    A body is digested when it comes for the second time: recognizing a repeat costs a fifth of a
    digest, so bodies that never repeat pay no more. The prediction cache decides whether an answer
    still holds: an entry here is used only while all its keys are in that cache.

    Owned by the event loop.

    Args:
        capacity_bytes: 0 turns it off.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._on = capacity_bytes > 0
        self._entries: LRUCache[bytes, Remembered] = LRUCache(capacity_bytes, getsizeof=_cost)
        self._once: set[int] = set()
        self._once_before: set[int] = set()

    @property
    def used_bytes(self) -> int:
        """Bytes of all entries, with their overhead."""
        return int(self._entries.currsize)

    def digest(
        self,
        model: ModelId,
        identity: str,
        content_type: str,
        body: bytes,
        *,
        many: bool,
        top_k: int | None = None,
    ) -> bytes | None:
        """Digest of a request that came before; None: it is new, or need not be kept.

        Args:
            model: the name and version that the answer will show.
            identity: what the keys of its items belong to, see `Engine.identity`.
            content_type: as the caller sent it.
            body: as the caller sent it.
            many: whether bodies hold many items.
            top_k: as the caller asked; it changes the answer, not the items.
        """
        if not self._on or content_type in NOT_PARSED:
            return None
        quick = hash(body)  # keyed by the process: clients cannot force collisions
        if quick not in self._once and quick not in self._once_before:
            if len(self._once) >= ONCE:
                self._once, self._once_before = set(), self._once
            self._once.add(quick)
            return None
        asked = f"{model}|{identity}|{many}|{top_k}|{content_type}\n"
        digest = hashlib.sha256(asked.encode())
        digest.update(body)
        return digest.digest()

    def get(self, digest: bytes) -> Remembered | None:
        """The remembered request with this digest."""
        return self._entries.get(digest)

    def put(self, digest: bytes, remembered: Remembered) -> None:
        """Remember a request, unless it is larger than the whole memo."""
        if _cost(remembered) <= self._entries.maxsize:
            self._entries[digest] = remembered


def _cost(remembered: Remembered) -> int:
    keys = sum(sys.getsizeof(key) for key in remembered.keys)
    return (
        keys
        + sys.getsizeof(remembered.keys)
        + sys.getsizeof(remembered.content)
        + ENTRY_OVERHEAD_BYTES
    )
