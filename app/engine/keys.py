"""The key of an item: equal keys mean that one answer serves both."""

from __future__ import annotations

import hashlib
from typing import Protocol, Self

from blake3 import blake3

from app.types import Array, Item, Signature, signature_of

MOST_BEGUN = 256  # clients choose the shapes of free dimensions: there may be many
# From this size on BLAKE3 is used, which hashes 602 KB in 67 us where SHA-256 takes 327. For small
# items SHA-256 is faster, with its processor instructions: 3.3 us for 4 KB, not 5.8 (AMD EPYC).
LARGE_BYTES = 32 * 1024


class _Digest(Protocol):
    def copy(self) -> Self: ...
    def update(self, data: bytes | memoryview, /) -> object: ...
    def digest(self) -> bytes: ...


class KeyMaker:
    """Computes the keys of one loaded model.

    A key is a cryptographic digest of the model's identity (digest of its manifest, and variant)
    and, per input, name, dtype, shape and bytes. The header of each input implies how many bytes
    follow, so two different items never hash the same stream. It also implies the kind of digest.
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
        """A digest of the start of the stream, which all items with these shapes share."""
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
    """The bytes of an array, not copied; BLAKE3 accepts nothing else."""
    return array.reshape(-1).view("u1").data
