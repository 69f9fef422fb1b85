"""Keys: equal items have equal ones, and nothing else has."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from app.engine.keys import MOST_BEGUN, KeyMaker
from app.types import Arrays, Item

MAKER = KeyMaker("digest:plan:float32")


def key(values: Arrays, maker: KeyMaker = MAKER) -> bytes:
    return maker.key(Item(values))


def x(*numbers: float, dtype: str = "float32") -> Arrays:
    return {"x": np.array(numbers, dtype)}


@pytest.mark.parametrize(
    "other",
    [
        {"y": np.array([1, 2], np.float32)},
        x(1, 3),
        x(1, 2, 0),
        x(1, 2, dtype="float64"),
        x(1, 2, dtype="int32"),
        {"x": np.array([[1, 2]], np.float32)},
        {"x": np.array([[1], [2]], np.float32)},
        {"x": np.array([1, 2], ">f4")},
        {"x": np.array([1, 2], np.float32), "y": np.array([], np.float32)},
        {"x": np.array([], np.float32)},
        {"x": np.array([1, 2], np.float32).view(np.int32)},
    ],
)
def test_keys_depend_on_name_dtype_shape_and_bytes(other: Arrays) -> None:
    assert key(other) != key(x(1, 2))


def test_equal_key_makers_give_equal_keys() -> None:
    fresh = KeyMaker("a")
    used = KeyMaker("a")
    for size in range(2 * MOST_BEGUN):  # shapes of a free dimension
        key({"x": np.zeros(size, np.float32)}, used)
    for size in (0, 1, MOST_BEGUN, 2 * MOST_BEGUN - 1):
        again = {"x": np.zeros(size, np.float32)}
        assert key(again, used) == key(again, fresh) == key(again, KeyMaker("a"))


SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
ARRAYS = arrays.arrays(
    dtype=st.sampled_from(["float32", "int32", "int64", "uint8", "bool"]),
    shape=SHAPES,
    elements=st.integers(0, 1),
)
ITEMS = st.dictionaries(st.sampled_from(["a", "b", "ab", "a|b"]), ARRAYS, min_size=1, max_size=2)


def _same(one: Arrays, other: Arrays) -> bool:
    return list(one) == list(other) and all(
        (one[n].dtype, one[n].shape, one[n].tobytes())
        == (other[n].dtype, other[n].shape, other[n].tobytes())
        for n in one
    )


@given(ITEMS, ITEMS)
def test_keys_are_equal_exactly_if_items_are(one: Arrays, other: Arrays) -> None:
    assert (key(one) == key(other)) is _same(one, other)
    copies = {name: array.copy() for name, array in one.items()}
    assert key(copies) == key(one)


def test_zeros_and_nans_differ_by_their_bits() -> None:
    bits = [0x00000000, 0x80000000, 0x7FC00000, 0x7FC00001, 0xFFC00000, 0x7F800001]
    items = [{"x": np.array([pattern], np.uint32).view(np.float32)} for pattern in bits]
    assert len({key(each) for each in items}) == len(bits)
    assert [key(each) for each in items] == [key(each) for each in items]
