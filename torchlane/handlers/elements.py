"""Texts and other bytes in tensors: arrays of bytes objects in the handler, octets in frames.

The octets are those of BYTES in the Open Inference Protocol: each element follows its length, in
four bytes, little-endian. An array of objects would have to be pickled.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np

    Array: TypeAlias = np.ndarray[Any, Any]

LENGTH_BYTES = 4
MAX_ELEMENTS = 1 << 18  # of a tensor: each takes about a microsecond, and an object


def packed(array: Array) -> Array:
    """The octets of an array of bytes, as an array of uint8."""
    import numpy as np  # noqa: PLC0415 # may be missing

    octets = bytearray()
    for each in array.reshape(-1).tolist():
        octets += len(each).to_bytes(LENGTH_BYTES, "little")
        octets += each
    return np.frombuffer(octets, np.uint8)


def unpacked(octets: Array, shape: tuple[int, ...]) -> Array:
    """The array of bytes that `packed` has packed.

    Args:
        octets: of dtype uint8.
        shape: of an item.

    Raises:
        ValueError: they are damaged.
    """
    data, at = octets.tobytes(), 0
    elements: list[bytes] = []
    while at < len(data):
        begin = at + LENGTH_BYTES
        at = begin + int.from_bytes(data[at:begin], "little")
        if max(begin, at) > len(data):
            raise ValueError(f"element {len(elements)} is cut off")
        elements.append(data[begin:at])
        _check_count(len(elements))
    count, rest = divmod(len(elements), math.prod(shape))
    if rest:
        raise ValueError(f"{len(elements)} elements do not fill items of the shape {[*shape]}")
    return _objects(elements).reshape(count, *shape)


def encoded(value: Any) -> Array:
    """An array, or lists, of texts and bytes as an array of objects, each of type bytes.

    Raises:
        ValueError: it has anything else, or a text that UTF-8 cannot have.
    """
    import numpy as np  # noqa: PLC0415 # see above

    if isinstance(value, np.ndarray):
        _check_count(value.size)
    # As objects: numpy gives each text of an array as many bytes as the longest one has.
    array = np.asarray(value, object)
    _check_count(array.size)
    return _objects([*map(_encoded, array.reshape(-1).tolist())]).reshape(array.shape)


def as_texts(value: Any) -> Any:
    """An array, or lists, as lists in which bytes are texts.

    Raises:
        UnicodeDecodeError: they are not UTF-8.
    """
    import numpy as np  # noqa: PLC0415 # see above

    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, np.ndarray):
        value = value.tolist()
    return [*map(as_texts, value)] if isinstance(value, list | tuple) else value


def _check_count(elements: int) -> None:
    if elements > MAX_ELEMENTS:
        raise ValueError(f"more than {MAX_ELEMENTS} elements")


def _encoded(value: Any) -> bytes:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise ValueError("a text with half of a surrogate pair") from None
    if not isinstance(value, bytes):
        raise ValueError(f"a value of type {type(value).__name__}; use str or bytes")
    return bytes(value)  # numpy's own type is a subclass


def _objects(elements: list[bytes]) -> Array:
    import numpy as np  # noqa: PLC0415 # see above

    array = np.empty(len(elements), object)
    array[:] = elements
    return array
