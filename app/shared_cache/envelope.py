"""Conversion of predictions to bytes and back; any other value under a key is detected as wrong.

    magic and version | BLAKE3 of all that follows | key | number of outputs
    per output: length of the name, name, dtype, number of axes, sizes
    the bytes of all outputs, concatenated, little-endian

The digest detects damaged or truncated values, the key detects values of other items. Neither
protects against a client that may write to the server: docs/shared-cache.md.
"""

from __future__ import annotations

import math
import struct

import numpy as np
from blake3 import blake3

from app.types import Array, Arrays, frozen_copy

MAGIC = b"TLC1"
KEY_BYTES = 32
MOST_BYTES = 1 << 20  # of a value; larger values are not stored
MOST_AXES = 16
DTYPES = ("<f2", "<f4", "<f8", "|i1", "<i2", "<i4", "<i8", "|u1", "|b1")
START = len(MAGIC) + 32  # offset of the digested part
_OUTPUTS_AT = START + KEY_BYTES


class WrongValue(Exception):
    """The value is not a prediction for this key; the message gives the reason."""


def encode(key: bytes, value: Arrays) -> bytes | None:
    """The bytes of a value; None if it is too large or of an unsupported kind."""
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
    """The value as read-only copies.

    Raises:
        WrongValue: if the bytes are not an output of `encode` for this key.
    """
    if not _OUTPUTS_AT < len(data) <= MOST_BYTES:
        raise WrongValue(f"{len(data)} bytes is not a valid size")
    if not data.startswith(MAGIC):
        raise WrongValue("its format or version is unknown")
    if data[START:_OUTPUTS_AT] != key:
        raise WrongValue("it is the prediction of another item")
    if blake3(memoryview(data)[START:]).digest() != data[len(MAGIC) : START]:
        raise WrongValue("its checksum is wrong")
    try:
        return _read(data)
    except (struct.error, IndexError, ValueError) as error:  # ValueError: bad text or shape
        raise WrongValue("its header cannot be read") from error


def _read(data: bytes) -> Arrays:
    """The arrays; sizes are checked against the available bytes before anything is created."""
    at = _OUTPUTS_AT + 1
    heads: list[tuple[str, np.dtype, tuple[int, ...]]] = []
    for _ in range(data[_OUTPUTS_AT]):
        name = data[at + 1 : at + 1 + data[at]].decode()
        at += 1 + data[at]
        code, axes = struct.unpack_from("<BB", data, at)
        if code >= len(DTYPES) or axes > MOST_AXES:
            raise WrongValue("its dtype or number of axes is invalid")
        heads.append((name, np.dtype(DTYPES[code]), struct.unpack_from(f"<{axes}I", data, at + 2)))
        at += 2 + 4 * axes
    sizes = [math.prod(shape) * dtype.itemsize for _, dtype, shape in heads]
    if at + sum(sizes) != len(data) or len({name for name, _, _ in heads}) != len(heads):
        raise WrongValue("its size does not match its shapes, or a name occurs twice")
    value: dict[str, Array] = {}
    for (name, dtype, shape), size in zip(heads, sizes, strict=True):
        array = np.frombuffer(data, dtype, size // dtype.itemsize, at).reshape(shape)
        if dtype.kind == "b" and array.view("u1").max(initial=0) > 1:
            raise WrongValue("it has a boolean that is neither 0 nor 1")
        value[name] = frozen_copy(array)
        at += size
    return value
