"""A prediction as bytes, and back: whatever else is found under its key is recognized as wrong.

    magic and version | BLAKE3 of all that follows | key | number of outputs
    per output: length of the name, name, dtype, number of axes, sizes
    the bytes of all outputs, one behind the other, little-endian

The digest finds what was damaged or cut off, the key what belongs to another item. Neither stops
who may write to the server: docs/shared-cache.md.
"""

from __future__ import annotations

import math
import struct

import numpy as np
from blake3 import blake3

from app.types import Array, Arrays, frozen_copy

MAGIC = b"TLC1"
KEY_BYTES = 32
MOST_BYTES = 1 << 20  # of a value; larger ones are not kept
MOST_AXES = 16
DTYPES = ("<f2", "<f4", "<f8", "|i1", "<i2", "<i4", "<i8", "|u1", "|b1")
START = len(MAGIC) + 32  # where the digested part begins
_OUTPUTS_AT = START + KEY_BYTES


class WrongValue(Exception):
    """It is not a prediction for this key; the message says how that was noticed."""


def encode(key: bytes, value: Arrays) -> bytes | None:
    """The bytes of a value; None: it is too large, or of a kind that is not kept."""
    size = sum([array.nbytes for array in value.values()])
    if size > MOST_BYTES or len(value) > 255 or len(key) != KEY_BYTES:
        return None
    pieces = [key, bytes((len(value),))]
    for name, array in value.items():
        written = name.encode()
        dtype = array.dtype.str
        if dtype not in DTYPES or len(written) > 255 or array.ndim > MOST_AXES:
            return None
        pieces.append(bytes((len(written),)) + written)
        pieces.append(
            struct.pack(f"<BB{array.ndim}I", DTYPES.index(dtype), array.ndim, *array.shape)
        )
    pieces += [array.tobytes() for array in value.values()]
    content = b"".join(pieces)
    if START + len(content) > MOST_BYTES:
        return None
    return MAGIC + blake3(content).digest() + content


def decode(key: bytes, data: bytes) -> Arrays:
    """The value, as read-only copies.

    Raises:
        WrongValue: if these bytes are not what `encode` made for this key.
    """
    if not _OUTPUTS_AT < len(data) <= MOST_BYTES:
        raise WrongValue(f"{len(data)} bytes cannot be one")
    if not data.startswith(MAGIC):
        raise WrongValue("it has another form, or version")
    if data[START:_OUTPUTS_AT] != key:
        raise WrongValue("it is the prediction of another item")
    if blake3(memoryview(data)[START:]).digest() != data[len(MAGIC) : START]:
        raise WrongValue("its checksum is wrong")
    try:
        return _read(data)
    except (struct.error, IndexError, ValueError) as error:  # the last one: no text, no shape
        raise WrongValue("its head cannot be read") from error


def _read(data: bytes) -> Arrays:
    """The arrays; sizes are compared with the bytes that there are before anything is made."""
    at = _OUTPUTS_AT + 1
    heads: list[tuple[str, np.dtype, tuple[int, ...]]] = []
    for _ in range(data[_OUTPUTS_AT]):
        name = data[at + 1 : at + 1 + data[at]].decode()
        at += 1 + data[at]
        code, axes = struct.unpack_from("<BB", data, at)
        if code >= len(DTYPES) or axes > MOST_AXES:
            raise WrongValue("it has a dtype or a shape that is never written")
        heads.append((name, np.dtype(DTYPES[code]), struct.unpack_from(f"<{axes}I", data, at + 2)))
        at += 2 + 4 * axes
    sizes = [math.prod(shape) * dtype.itemsize for _, dtype, shape in heads]
    if at + sum(sizes) != len(data) or len({name for name, _, _ in heads}) != len(heads):
        raise WrongValue("its bytes are not those of its shapes")
    value: dict[str, Array] = {}
    for (name, dtype, shape), size in zip(heads, sizes, strict=True):
        array = np.frombuffer(data, dtype, size // dtype.itemsize, at).reshape(shape)
        if dtype.kind == "b" and array.view("u1").max(initial=0) > 1:
            raise WrongValue("it has a truth value that is neither 0 nor 1")
        value[name] = frozen_copy(array)
        at += size
    return value
