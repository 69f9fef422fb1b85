"""What is found in a cache is what was put there for that very item, or it is recognized."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from app.shared_cache.envelope import DTYPES, MAGIC, MOST_BYTES, START, WrongValue, decode, encode
from app.types import Arrays

KEY, OTHER = bytes(range(32)), bytes(32)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
ARRAYS = st.sampled_from(DTYPES).flatmap(lambda dtype: hnp.arrays(dtype, SHAPES))
VALUES = st.dictionaries(st.text(max_size=8), ARRAYS, max_size=4)
ONE: Arrays = {"scores": np.array([0.25, 0.75], np.float32), "boxes": np.zeros((2, 4), np.int64)}


def encoded(value: Arrays) -> bytes:
    data = encode(KEY, value)
    assert data is not None
    return data


def forged(content: bytes) -> bytes:
    """With a checksum that is right."""
    return MAGIC + blake3(content).digest() + content


@given(VALUES)
@settings(max_examples=50)
def test_values_survive_a_round_trip(value: Arrays) -> None:
    found = decode(KEY, encoded(value))
    assert list(found) == list(value)
    for name, array in value.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()


def test_decoded_value_is_a_read_only_copy() -> None:
    found = decode(KEY, encoded(ONE))["scores"]
    assert found.base is None
    assert found.flags.aligned
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 1


def test_unsupported_values_are_not_encoded() -> None:
    assert encode(KEY, {"y": np.zeros(MOST_BYTES, np.uint8)}) is None
    assert encode(KEY, {"y": np.zeros(1, np.complex64)}) is None
    assert encode(KEY, {"y": np.array(["text"])}) is None
    assert encode(b"short", ONE) is None


def test_value_of_another_item_is_rejected() -> None:
    with pytest.raises(WrongValue, match="another item"):
        decode(OTHER, encoded(ONE))


@given(st.integers(0, len(encoded(ONE)) * 8 - 1))
@settings(max_examples=50)
def test_flipped_bit_is_detected(bit: int) -> None:
    data = bytearray(encoded(ONE))
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(WrongValue):
        decode(KEY, bytes(data))


HUGE = KEY + b"\1" + b"\1y" + struct.pack("<BB2I", 2, 2, 2**32 - 1, 2**32 - 1)
EMPTY = KEY + b"\1" + b"\1y" + struct.pack("<BB3I", 1, 3, 0, 2**32 - 1, 2**32 - 1)  # no bytes
TWICE = KEY + b"\2" + 2 * (b"\1y" + struct.pack("<BB", 7, 0)) + b"\0\0"


@given(st.binary(max_size=200))
@settings(max_examples=200)
@example(HUGE[32:])
@example(EMPTY[32:])
@example(TWICE[32:])
@example(b"\1\1y" + bytes((DTYPES.index("|b1"), 0)) + b"\2")  # a bool that is 2
@example(b"\1\1\xff" + bytes((7, 0)) + b"\0")  # a name that is no text
@example(b"\1\1y" + bytes((7, 255)))
@example(b"\1\1y" + bytes((200, 0)))
@example(b"\xff")
def test_forged_data_is_bounded_or_rejected(tail: bytes) -> None:
    data = forged(KEY + tail)
    try:
        found = decode(KEY, data)
    except WrongValue:
        return
    assert encode(KEY, found) == data
    assert sum(array.nbytes for array in found.values()) <= len(tail)


def test_another_version_is_rejected() -> None:
    data = encoded(ONE)
    with pytest.raises(WrongValue, match="version"):
        decode(KEY, b"TLC2" + data[4:])
    with pytest.raises(WrongValue, match="not a valid size"):
        decode(KEY, data[:START])


@given(st.integers(0, len(encoded(ONE)) - 1), st.binary(max_size=3))
@settings(max_examples=50)
def test_wrong_length_is_detected(length: int, more: bytes) -> None:
    with pytest.raises(WrongValue):
        decode(KEY, encoded(ONE)[:length] + more)
    with pytest.raises(WrongValue):
        decode(KEY, encoded(ONE) + more + b"\0")
