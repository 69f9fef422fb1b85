"""Keys: equal items have equal ones, and nothing else has."""

from __future__ import annotations

import io

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from app.api.payloads import read_items
from app.codecs.base import JSON, NPY, OCTET_STREAM
from app.codecs.tensor import TensorCodec
from app.engine.keys import MOST_BEGUN, KeyMaker
from app.types import Arrays, Item
from models.tensors import Dtype
from tests.unit.models.manifests import make_manifest, spec

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


def test_models_and_variants_share_no_key() -> None:
    identities = ["a:script", "a:plan", "b:script", "", "a", "a:script\0", "ab", "a:script "]
    assert len({key(x(1, 2), KeyMaker(each)) for each in identities}) == len(identities)


def test_equal_key_makers_give_equal_keys() -> None:
    fresh = KeyMaker("a")
    used = KeyMaker("a")
    for size in range(2 * MOST_BEGUN):  # shapes of a free dimension
        key({"x": np.zeros(size, np.float32)}, used)
    for size in (0, 1, MOST_BEGUN, 2 * MOST_BEGUN - 1):
        again = {"x": np.zeros(size, np.float32)}
        assert key(again, used) == key(again, fresh) == key(again, KeyMaker("a"))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int64", "uint8"])
def test_every_encoding_gives_the_same_key(dtype: Dtype) -> None:
    codec = TensorCodec(make_manifest([spec("x", dtype=dtype, shape=(-1, 2, 2))]))
    rows = np.arange(8, dtype=dtype).reshape(2, 2, 2)
    little = rows.astype(np.dtype(dtype).newbyteorder("<")).tobytes()
    nested, flat = rows.tolist(), rows.reshape(2, 4).tolist()
    ways = [
        codec.decode_raw(OCTET_STREAM, little, max_items=9),
        codec.decode_raw(NPY, _npy(rows), max_items=9),
        codec.decode_raw(NPY, _npy(np.asfortranarray(rows)), max_items=9),
        codec.decode_raw(NPY, _npy(rows.astype(np.dtype(dtype).newbyteorder(">"))), max_items=9),
        [codec.decode(each) for each in nested],
        [codec.decode(each) for each in flat],
        [codec.decode({"x": each}) for each in nested],
        read_items(codec, JSON, orjson.dumps({"inputs": nested}), many=True, max_items=9),
        read_items(codec, JSON, orjson.dumps({"inputs": flat}), many=True, max_items=9),
    ]
    keys = [[MAKER.key(item) for item in items or ()] for items in ways]
    assert all(each == keys[0] for each in keys)
    assert keys[0][0] != keys[0][1]
    alone = read_items(codec, JSON, orjson.dumps({"input": nested[1]}), many=False, max_items=9)
    assert [MAKER.key(item) for item in alone] == keys[0][1:]


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


def _npy(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()
