"""The part of Protobuf's encoding (https://protobuf.dev/programming-guides/encoding) for infer.

A message is parsed field by field, without copying its bytes, and the number of fields is limited:
a general parser would create an object for every two bytes that a client sends.
"""

from __future__ import annotations

import numpy as np

from app.errors import InvalidInput, PayloadTooLarge
from app.types import Array

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5  # wire types; 3 and 4 are groups, which proto3 lacks
MAX_VARINT_BYTES = 10
CHUNK_BYTES = 1 << 20  # of varints, decoded at once
MASK = (1 << 64) - 1


Field = tuple[int, int, int, int]  # number, wire type, and where its value begins and ends


class Reader:
    """Parses one message.

    Args:
        data: the message.
        most: maximum number of fields, in all its parts in total.

    Attributes:
        data: the message.
    """

    __slots__ = ("_left", "_most", "data")

    def __init__(self, data: bytes, most: int) -> None:
        self.data = data
        self._most = self._left = most

    def fields(self, at: int, end: int) -> list[Field]:
        """The fields between two places.

        Raises:
            InvalidInput: if this is not a message.
            PayloadTooLarge: if there are too many fields.
        """
        data = self.data
        found: list[Field] = []
        try:
            while at < end:
                tag = data[at]
                at += 1
                if tag > 127:
                    tag, at = _varint(data, at - 1)
                kind = tag & 7
                begin = at
                if kind == LENGTH:
                    size = data[at]
                    begin = at + 1
                    if size > 127:
                        size, begin = _varint(data, at)
                    at = begin + size
                elif kind == VARINT:
                    while data[at] > 127:
                        at += 1
                    at += 1
                elif kind == FIXED64:
                    at += 8
                elif kind == FIXED32:
                    at += 4
                else:
                    raise _malformed()
                found.append((tag >> 3, kind, begin, at))
                if len(found) > self._left:
                    raise PayloadTooLarge(f"a message may have at most {self._most} fields")
        except IndexError:
            raise _malformed() from None
        if at != end:
            raise _malformed()
        self._left -= len(found)
        return found

    def text(self, field: Field) -> str:
        """The value of a string.

        Raises:
            InvalidInput: if it is not UTF-8.
        """
        _, _, begin, end = field
        try:
            return str(self.data[begin:end], "utf-8")
        except UnicodeDecodeError as error:
            raise _malformed() from error

    def unsigned(self, field: Field) -> int:
        """The value of a uint64, or of a bool."""
        return _varint(self.data, field[2])[0]

    def signed(self, field: Field) -> int:
        """The value of an int64."""
        return _signed(self.unsigned(field))

    def signed_all(self, field: Field) -> list[int]:
        """The values of a repeated int64: packed, or a single value."""
        found = []
        _, _, at, end = field
        try:
            while at < end:
                value, at = _varint(self.data, at)
                found.append(_signed(value))
        except IndexError:  # the last one is cut off, at the end of the message
            raise _malformed() from None
        if at != end:
            raise _malformed()
        return found

    def octets(self, fields: list[Field]) -> memoryview:
        """The bytes of all values, concatenated; a single value is not copied."""
        view = memoryview(self.data)
        pieces = [view[begin:end] for _, _, begin, end in fields]
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))


def _malformed() -> InvalidInput:
    return InvalidInput("the message is malformed: it is not valid protobuf")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number, and where the next field begins.

    Raises:
        IndexError: if it is cut off.
        InvalidInput: if it is too long.
    """
    value = 0
    for shift in range(0, 7 * MAX_VARINT_BYTES, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & MASK, at
    raise _malformed()


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def integers(octets: memoryview, dtype: np.dtype[np.generic], count: int) -> Array:
    """Varints as an array.

    Args:
        octets: varints, one after the other.
        dtype: dtype of the array: integers or bool; a negative number has ten bytes, as an int64.
        count: required number of varints.

    Raises:
        InvalidInput: if their number differs, or one does not fit the dtype.
    """
    given = np.frombuffer(octets, np.uint8)
    last = given < 128
    if int(np.count_nonzero(last)) != count or (count and not last[-1]):
        raise InvalidInput(f"expected {count} numbers, got {int(np.count_nonzero(last))}")
    made = np.empty(count, dtype)
    done = at = 0
    while done < count:
        ends = np.flatnonzero(last[at : at + CHUNK_BYTES])
        if not len(ends):
            raise _malformed()
        size = int(ends[-1]) + 1
        made[done : done + len(ends)] = _fitting(_decoded(given[at : at + size], ends), dtype)
        done, at = done + len(ends), at + size
    return made


def _decoded(given: Array, ends: Array) -> Array:
    """Varints that end at these positions, as uint64."""
    begins = np.concatenate(([0], ends[:-1] + 1))
    sizes = ends - begins + 1
    longest = int(sizes.max())
    if longest > MAX_VARINT_BYTES:
        raise _malformed()
    values = np.zeros(len(ends), np.uint64)
    for index in range(longest):
        there = sizes > index
        bits = (given[begins[there] + index] & 127).astype(np.uint64)
        values[there] |= bits << np.uint64(7 * index)
    return values


def _fitting(values: Array, dtype: np.dtype[np.generic]) -> Array:
    if dtype.kind == "b":
        return np.not_equal(values, 0)
    limits = np.iinfo(dtype)  # type: ignore[type-var]  # of integers, see `integers`
    if dtype.kind == "i":
        values = values.view(np.int64)
    if values.min() < limits.min or values.max() > limits.max:
        raise InvalidInput(f"numbers are out of the range of {dtype.name}")
    return values


def written(number: int, octets: bytes) -> bytes:
    """A field of bytes, such as a string or a message; the field's number is at most 15."""
    return b"%c%b%b" % (number << 3 | LENGTH, varint(len(octets)), octets)


def number_written(number: int, value: int) -> bytes:
    """A field with an int64; the field's number is at most 15."""
    return b"%c%b" % (number << 3, varint(value))


def varint(value: int) -> bytes:
    """A number of at least 0."""
    if value < 128:
        return b"%c" % value
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)
