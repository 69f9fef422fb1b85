"""Elements of BYTES in binary, as Triton's extension has them: each after its length."""

from __future__ import annotations

import codecs
import struct
from collections.abc import Iterator, Sequence
from itertools import islice

from app.errors import InvalidInput

LENGTH = struct.Struct("<I")  # before each element
PART_BYTES = 64 << 10  # of an element, decoded at once


def elements_of(where: str, data: memoryview) -> Iterator[memoryview]:
    """The elements of a tensor, in order.

    Args:
        where: names the tensor, for messages.
        data: octets of the tensor.

    Raises:
        InvalidInput: if an element is cut off.
    """
    at = number = 0
    while at < len(data):
        begin = at + LENGTH.size
        if begin > len(data):
            raise InvalidInput(f"{where}: element {number} is cut off in its length")
        (size,) = LENGTH.unpack_from(data, at)
        at = begin + size
        if at > len(data):
            raise InvalidInput(
                f"{where}: element {number} claims {size} bytes, {len(data) - begin} are left"
            )
        yield data[begin:at]
        number += 1


def split_bytes(where: str, data: memoryview, count: int) -> list[bytes]:
    """The elements of a tensor that has a known number of them; see `elements_of`.

    Raises:
        InvalidInput: if the lengths do not match the data or the number of elements.
    """
    found = [bytes(each) for each in islice(elements_of(where, data), count)]
    _check(where, data, count, len(found), sum(map(len, found)))
    return found


def check_bytes(where: str, data: memoryview, count: int) -> None:
    """Check that a tensor has this number of elements; see `elements_of`.

    Raises:
        InvalidInput: if the lengths do not match the data or the number of elements.
    """
    found = size = 0
    for each in islice(elements_of(where, data), count):
        found += 1
        size += len(each)
    _check(where, data, count, found, size)


def _check(where: str, data: memoryview, count: int, found: int, size: int) -> None:
    taken = size + LENGTH.size * found
    if taken != len(data) or found != count:
        raise InvalidInput(
            f"{where}: {found} of {count} elements with their lengths take {taken} of {len(data)} "
            "bytes"
        )


def join_bytes(elements: Sequence[bytes]) -> bytes:
    """A tensor of these elements, as `elements_of` reads it."""
    return b"".join([part for each in elements for part in (LENGTH.pack(len(each)), each)])


def text_of(element: memoryview) -> Iterator[str]:
    """The text of an element, in parts that are quick to decode.

    Raises:
        UnicodeDecodeError: if it is not UTF-8.
    """
    if len(element) <= PART_BYTES:
        yield str(element, "utf-8")
        return
    parts = (bytes(element[at : at + PART_BYTES]) for at in range(0, len(element), PART_BYTES))
    yield from codecs.iterdecode(parts, "utf-8")
