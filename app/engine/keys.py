"""The key of an item: equal keys mean that one answer serves both."""

from __future__ import annotations

import hashlib
from typing import Protocol, Self

from blake3 import blake3

from app.types import Array, Item, Signature, signature_of

MOST_BEGUN = 256  # shapes of free dimensions come from clients: there may be many
# From here on BLAKE3, which hashes 602 KB in 67 us where SHA-256 takes 327. For small items
# SHA-256, of which processors know the steps, takes less: 3.3 us for 4 KB, not 5.8 (AMD EPYC).
LARGE_BYTES = 32 * 1024


class _Digest(Protocol):
    def copy(self) -> Self: ...
    def update(self, data: bytes | memoryview, /) -> object: ...
    def digest(self) -> bytes: ...


class KeyMaker:
    """Makes the keys of one loaded model.

    A cryptographic digest of the model's identity (digest of its manifest, and variant) and, per
    input, name, dtype, shape and bytes. The header of each input tells how many bytes follow it, so
    that no two different items hash the same stream. Which digest it is depends on the header too.
    """

    def __init__(self, identity: str) -> None:
        self.identity = identity
        self._seed = identity.encode() + b"\0"
        self._begun: dict[Signature, _Digest] = {}  # seed and first header: equal for most items

    def key(self, item: Item) -> bytes:
        """32 bytes; arrays must be C-contiguous."""
        arrays = item.arrays.values()
        signature = signature_of(item.arrays) if item.length else item.signature
        begun = self._begun.get(signature)
        digest = self._begin(item, signature) if begun is None else begun.copy()
        if len(arrays) == 1:
            (array,) = arrays
            digest.update(array.data if array.nbytes < LARGE_BYTES else _octets(array))
        else:
            for header, array in zip(signature, arrays, strict=True):
                digest.update(_written(header))
                digest.update(_octets(array))
        return digest.digest()

    def _begin(self, item: Item, signature: Signature) -> _Digest:
        """The beginning of the stream of every item with these shapes."""
        size = sum(array.nbytes for array in item.arrays.values())
        start = self._seed + (_written(signature[0]) if len(signature) == 1 else b"")
        begun: _Digest = blake3(start) if size >= LARGE_BYTES else hashlib.sha256(start)
        if len(self._begun) < MOST_BEGUN:
            self._begun[signature] = begun
        return begun.copy()


def _written(header: tuple[str, str, tuple[int, ...]]) -> bytes:
    name, dtype, shape = header
    return f"{name}|{dtype}|{shape}\0".encode()


def _octets(array: Array) -> memoryview:
    """The bytes of an array, not copied; BLAKE3 takes nothing else."""
    return array.reshape(-1).view("u1").data
