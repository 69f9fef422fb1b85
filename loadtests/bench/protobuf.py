"""Encodes the messages of one gRPC call, so that the benchmark needs no generated code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

# Fields of inference.ModelInferRequest, its InferInputTensor, and inference.ModelInferResponse.
MODEL_NAME, INPUTS, RAW_INPUT_CONTENTS = 1, 5, 7
NAME, DATATYPE, SHAPE = 1, 2, 3
RAW_OUTPUT_CONTENTS = 6
LENGTH_DELIMITED = 2  # the only wire type of these fields
VARINT_BITS = 7


def infer_head(model: str, name: str, shape: Sequence[int], size: int) -> bytes:
    """Encode a ModelInferRequest of one FP32 tensor, without the `size` bytes of its values."""
    packed = b"".join(varint(each) for each in shape)
    tensor = field(NAME, name.encode()) + field(DATATYPE, b"FP32") + field(SHAPE, packed)
    head = field(MODEL_NAME, model.encode()) + field(INPUTS, tensor)
    return head + _tag(RAW_INPUT_CONTENTS) + varint(size)


def raw_output(message: bytes) -> bytes:
    """Return the values of the first output of a ModelInferResponse.

    Raises:
        StopIteration: if there are none.
        ValueError: see `fields`.
    """
    return next(content for number, content in fields(message) if number == RAW_OUTPUT_CONTENTS)


def field(number: int, content: bytes) -> bytes:
    """Encode a field of bytes, text or a message."""
    return _tag(number) + varint(len(content)) + content


def fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Decode a message with fields of only bytes, text or messages.

    Raises:
        ValueError: if it has other fields, or is truncated.
    """
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        size, at = _read_varint(message, at)
        if tag & 7 != LENGTH_DELIMITED or at + size > len(message):
            raise ValueError("no message of such fields")
        yield tag >> 3, message[at : at + size]
        at += size


def varint(number: int) -> bytes:
    """Encode a number of at least 0: seven bits per byte, the lowest first."""
    parts = []
    while number >> VARINT_BITS:
        parts.append(number & 127 | 128)
        number >>= VARINT_BITS
    return bytes((*parts, number))


def _tag(number: int) -> bytes:
    return varint(number << 3 | LENGTH_DELIMITED)


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = message[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + VARINT_BITS
        if byte < 128:
            return number, at
