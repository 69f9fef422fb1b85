"""Bodies that come again: what they asked for and what was answered, without parsing them anew."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass

from cachetools import LRUCache

from app.codecs.base import NPY, OCTET_STREAM
from app.types import ModelId

ONCE = 1 << 14  # hashes of bodies that came once, in each of two generations
ENTRY_OVERHEAD_BYTES = 400  # of the tables of a cachetools LRU cache, of the object, the tuple
NOT_PARSED = frozenset({OCTET_STREAM, NPY})  # such a body is the array: nothing to be saved


@dataclass(frozen=True, slots=True)
class Remembered:
    """A request whose items were all in the cache.

    Attributes:
        keys: of its items.
        content: the JSON that answered it.
    """

    keys: tuple[bytes, ...]
    content: bytes


class AnswerMemo:
    """Digest of a body -> the keys of its items, and the answer as it was written.

    A body is noticed when it comes for the second time: to tell that it came before costs a fifth
    of a digest, so bodies that never repeat pay no more. Whether an answer still stands is the
    prediction cache's to say: an entry here is used only while all its keys are found there.

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
        """Real bytes of all entries."""
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
        """What identifies a request that came before; None: it did not, or need not be kept.

        Args:
            model: what is asked, by the name and version that the answer will say.
            identity: what the keys of its items belong to, see `Engine.identity`.
            content_type: as the caller sent it.
            body: as the caller sent it.
            many: whether bodies hold many items.
            top_k: as the caller asked; the answer differs by it, the items do not.
        """
        if not self._on or content_type in NOT_PARSED:
            return None
        quick = hash(body)  # keyed by the process: nobody can aim at it
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
        """What is known of a request."""
        return self._entries.get(digest)

    def put(self, digest: bytes, remembered: Remembered) -> None:
        """Keep it; what is larger than the whole memo is simply not kept."""
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
