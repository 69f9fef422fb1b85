"""The key of an item: equal keys mean that one answer serves both."""

from __future__ import annotations

import hashlib

from app.types import Item


class KeyMaker:
    """Makes the keys of one loaded model.

    SHA-256 over the model's identity (digest of its manifest, and variant) and, per input, name,
    dtype, shape and bytes. The header of each input tells how many bytes follow it, so that no two
    different items hash the same stream.
    """

    def __init__(self, identity: str) -> None:
        self._seed = hashlib.sha256(identity.encode() + b"\0")

    def key(self, item: Item) -> bytes:
        """32 bytes; arrays must be C-contiguous."""
        digest = self._seed.copy()
        for name, array in item.arrays.items():
            digest.update(f"{name}|{array.dtype.str}|{array.shape}\0".encode())
            digest.update(array.data)
        return digest.digest()
