"""Every spelling of an item gives the same item, and answers can be parsed again."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import orjson
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from app.api.payloads import read_items
from app.codecs.base import NPY, OCTET_STREAM
from app.codecs.tensor import TensorCodec
from app.types import Array, Arrays
from models.tensors import Dtype, TensorSpec
from tests.unit.models.manifests import make_manifest

DTYPES: list[Dtype] = [
    *("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")
]
SHAPES = npst.array_shapes(min_dims=0, max_dims=3, min_side=1, max_side=3)


@st.composite
def stacks(draw: st.DrawFn) -> Array:
    """One to three items of any dtype and shape, stacked; floats are finite."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = (draw(st.integers(1, 3)), *draw(SHAPES))
    finite: dict[str, Any] = {"allow_nan": False, "allow_infinity": False}
    return draw(npst.arrays(dtype, shape, elements=finite if dtype.kind == "f" else None))


def codec_of(stacked: Array, *, free: bool = False) -> TensorCodec:
    return TensorCodec(make_manifest([spec_of("x", stacked, free=free)]))


def spec_of(name: str, stacked: Array, *, free: bool = False) -> TensorSpec:
    shape = (-1, *(-1 if free else size for size in stacked.shape[1:]))
    return TensorSpec.model_validate({"name": name, "dtype": stacked.dtype.name, "shape": shape})


def read(codec: TensorCodec, media_type: str, body: bytes, *, many: bool) -> list[Array]:
    items = read_items(codec, media_type, body, many=many, max_items=9)
    arrays = [item.arrays["x"] for item in items]
    assert all(array.flags.c_contiguous for array in arrays)
    return arrays


def same(got: list[Array], wanted: Array) -> None:
    """To the last bit: -0.0 is another number than 0.0."""
    assert [(a.dtype, a.shape, a.tobytes()) for a in got] == [
        (a.dtype, a.shape, a.tobytes()) for a in (wanted[row, ...] for row in range(len(wanted)))
    ]


@settings(deadline=None, max_examples=40)
@given(stacks(), st.booleans())
def test_every_encoding_gives_the_same_item(stacked: Array, by_name: bool) -> None:
    codec = codec_of(stacked)
    little = stacked.astype(stacked.dtype.newbyteorder("<")).tobytes()
    same(read(codec, OCTET_STREAM, little, many=True), stacked)
    nested: list[Any] = stacked.tolist()
    if by_name:
        nested = [{"x": each} for each in nested]
    flat = stacked.reshape(len(stacked), -1).tolist()
    for written in (nested, flat):
        same(read(codec, "application/json", body(inputs=written), many=True), stacked)
        same(read(codec, "application/json", body(input=written[0]), many=False), stacked[:1])


@settings(deadline=None, max_examples=40)
@given(stacks())
def test_answers_can_be_decoded_again(stacked: Array) -> None:
    codec = TensorCodec(make_manifest(outputs=[spec_of("y", stacked)]))
    predictions: list[Arrays] = [{"y": stacked[row, ...]} for row in range(len(stacked))]
    read_again = np.load(io.BytesIO(b"".join(codec.encode_raw(NPY, predictions, many=True))))
    same([read_again[row, ...] for row in range(len(read_again))], stacked)
    octets = b"".join(codec.encode_raw(OCTET_STREAM, predictions, many=True))
    little = np.frombuffer(octets, stacked.dtype.newbyteorder("<")).reshape(stacked.shape)
    np.testing.assert_array_equal(little, stacked)
    for row, prediction in enumerate(predictions):
        told = orjson.dumps(codec.encode(prediction), option=orjson.OPT_SERIALIZE_NUMPY)
        value = np.array(json.loads(told)["outputs"]["y"]).astype(stacked.dtype)
        same([value.reshape(stacked.shape[1:])], stacked[row : row + 1])


def body(**members: object) -> bytes:
    return json.dumps(members).encode()


def npy(array: Array) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


@settings(deadline=None, max_examples=40)
@given(stacks(), st.booleans(), st.booleans())
def test_npy_layouts_give_the_same_item(stacked: Array, free: bool, swapped: bool) -> None:
    codec = codec_of(stacked, free=free)
    written = stacked.astype(stacked.dtype.newbyteorder(">")) if swapped else stacked
    for layout in (written, np.asfortranarray(written)):
        same(read(codec, NPY, npy(layout), many=True), stacked)
        same(read(codec, NPY, npy(layout[0]), many=False), stacked[:1])
    if free:
        nested = body(inputs=stacked.tolist())
        same(read(codec, "application/json", nested, many=True), stacked)
