"""The part of Protobuf's encoding (https://protobuf.dev/programming-guides/encoding) used here.

Generated code reads messages, once their fields have been counted: it makes an object for every two
bytes that a client sends. The bytes of tensors are read here, because it would copy them.
"""

from __future__ import annotations

from app.errors import InvalidInput, PayloadTooLarge

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5  # wire types; 3 and 4 are groups, which proto3 lacks
MAX_VARINT_BYTES = 10


Field = tuple[int, int, int, int]  # number, wire type, and where its value begins and ends


class Reader:
    """Finds the fields of one message.

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
                    at = at + 1 if data[at] < 128 else _varint(data, at)[1]
                elif kind == FIXED64:
                    at += 8
                elif kind == FIXED32:
                    at += 4
                else:
                    raise malformed()
                found.append((tag >> 3, kind, begin, at))
                if len(found) > self._left:
                    raise PayloadTooLarge(f"a message may have at most {self._most} fields")
        except IndexError:
            raise malformed() from None
        if at != end:
            raise malformed()
        self._left -= len(found)
        return found

    def allow(self, more: int) -> None:
        """Raise the maximum number of fields."""
        self._most += more
        self._left += more

    def text(self, field: Field) -> str:
        """The value of a string.

        Raises:
            InvalidInput: if it is not UTF-8.
        """
        _, _, begin, end = field
        try:
            return str(self.data[begin:end], "utf-8")
        except UnicodeDecodeError as error:
            raise malformed() from error


def malformed() -> InvalidInput:
    """The error for bytes that are not a message."""
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
            return value, at
    raise malformed()


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
