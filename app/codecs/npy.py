"""Arrays of .npy files, as numpy.save writes them, from untrusted clients."""

from __future__ import annotations

import io
import math
import tokenize
from functools import lru_cache
from typing import Any

import numpy as np

from app.codecs.values import convert, misshapen, wanted
from app.errors import InvalidInput
from app.types import Array
from models.system.quiet import ignore_warnings
from models.tensors import TensorSpec

MAX_HEADER_BYTES = 4096
# Warnings about files written by Python 2, odd literals and deprecated dtype names, with which
# clients could fill the log.
WARNINGS = (
    {"message": r"Reading `\.npy`"},
    {"module": "<unknown>"},
    {"module": r"numpy\.lib\."},
)
# Raised by numpy's reader if the header, a Python literal, is malformed.
DAMAGE = (
    *(ValueError, SyntaxError, TypeError, OverflowError, RecursionError, MemoryError),
    tokenize.TokenError,
)


def read_npy(spec: TensorSpec, body: bytes, *, many: bool, may_be_empty: bool = False) -> Array:
    """The items of a file, [n, *shape] of the input's dtype; n is 1 without `many`.

    Header and bytes are parsed separately, so the header's claims allocate nothing.

    Args:
        spec: the input.
        body: the file.
        many: whether the array has a leading axis for the items.
        may_be_empty: whether items may have no numbers, such as boxes of no object.

    Raises:
        InvalidInput: if the file is damaged, or the model does not accept its array.
    """
    head = body[: _head_bytes(body)]
    try:
        shape, fortran, dtype = _header(head)
    except DAMAGE as error:
        raise InvalidInput("this is not an .npy file as numpy.save writes it") from error
    if dtype.hasobject or dtype.kind not in "fiub":
        raise InvalidInput(f"{spec.name!r}: expected {wanted(spec)}, got an array of {dtype}")
    data = memoryview(body)[len(head) :]
    if math.prod(shape) * dtype.itemsize != len(data):
        raise InvalidInput(
            f"the .npy header says shape {list(shape)}, but {len(data)} bytes follow"
        )
    try:
        array = np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")
    except (ValueError, TypeError, OverflowError) as error:  # sizes no array can have
        raise InvalidInput(
            f"the .npy header says shape {list(shape)}, which no array can have"
        ) from error
    rows = array if many else array[np.newaxis]
    # A header could claim billions of items that have no bytes.
    is_empty = many and rows.size == 0 and not may_be_empty
    if rows.ndim == 0 or not spec.takes(rows.shape[1:]) or is_empty:
        if not many:
            raise misshapen(spec, shape)
        raise InvalidInput(
            f"{spec.name!r}: expected {wanted(spec)}, with a leading axis for the items, got shape "
            f"{list(shape)}"
        )
    return convert(spec, rows)


def _head_bytes(body: bytes) -> int:
    """How many bytes precede the numbers; at most what `MAX_HEADER_BYTES` allows."""
    width = 2 if body[6:7] == b"\x01" else 4  # of the header's length
    start = 8 + width
    return start + min(int.from_bytes(body[8:start], "little"), MAX_HEADER_BYTES + 1)


@lru_cache(maxsize=256)  # clients send few shapes, and numpy takes 0.1 ms to read the literal
def _header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether it is in Fortran's order, and dtype."""
    for each in WARNINGS:
        ignore_warnings(**each)
    file = io.BytesIO(head)
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file, MAX_HEADER_BYTES)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(file, MAX_HEADER_BYTES)
    raise InvalidInput(f"unsupported .npy version {version}; use 1.0 or 2.0")
