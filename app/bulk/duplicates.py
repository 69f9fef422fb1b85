"""Equal rows of a block, which are computed once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from app.bulk.blocks import Block
from app.engine.keys import KeyMaker
from app.types import Array, Arrays


def distinct(block: Block) -> tuple[Array, Array]:
    """The first of each group of equal rows.

    Returns:
        their positions among the good rows, ascending; and for each good row, the index of its
        group in these positions.
    """
    count = len(block.good)
    if not count:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    if block.arrays is not None:
        candidates = _alike(block.arrays, count)
        keys: Iterable[object] = (_bytes(block.arrays, row) for row in candidates.tolist())
    else:
        candidates = np.arange(count)
        key = KeyMaker("").key
        keys = map(key, block.items or ())
    return _group(count, candidates, keys)


def _alike(arrays: Arrays, count: int) -> Array:
    """Rows that share a checksum, which include all equal rows. Most checksums are unique."""
    sums = np.zeros(count, np.uint64)
    with np.errstate(over="ignore"):
        for array in arrays.values():
            octets = np.ascontiguousarray(array).reshape(count, -1).view(np.uint8)
            width = octets.shape[1]
            word = next(each for each in (8, 4, 2, 1) if width % each == 0)
            words = octets.view(f"u{word}") if width else octets
            sums = sums * np.uint64(31) + words.sum(axis=1, dtype=np.uint64)
    _, inverse, counts = np.unique(sums, return_inverse=True, return_counts=True)
    return np.flatnonzero(counts[inverse] > 1)


def _bytes(arrays: Arrays, row: int) -> Sequence[bytes]:
    return tuple(array[row].tobytes() for array in arrays.values())


def _group(count: int, candidates: Array, keys: Iterable[object]) -> tuple[Array, Array]:
    leader_of = np.arange(count)
    first: dict[object, int] = {}
    for row, key in zip(candidates.tolist(), keys, strict=True):
        leader_of[row] = first.setdefault(key, row)
    leaders, place = np.unique(leader_of, return_inverse=True)
    return leaders, place
