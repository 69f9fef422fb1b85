"""The document's item schema accepts exactly what the codec accepts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import jsonschema_rs
import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from app.codecs.choose import codec_for
from app.codecs.tensor import TensorCodec
from app.errors import InvalidInput
from models.codec_specs import ImageCodecSpec, PicturePreprocess
from models.tensors import Dtype, TensorSpec
from tests.unit.models.manifests import make_manifest, spec

SHAPES: list[tuple[int, ...]] = [(), (1,), (2,), (2, 1), (1, 2), (-1,), (-1, 2)]
DTYPES: list[Dtype] = ["float32", "float16", "float64", "int64", "int8", "uint8", "bool"]

numbers = st.one_of(
    st.integers(-(2**70), 2**70),
    st.integers(-130, 260),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0, 1, 1.0, -0.0, 127.0, 255, 65504, 1e39]),
)
leaves = numbers | st.booleans() | st.none() | st.sampled_from(["", "1", "x"])
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abx"), inner),
    max_leaves=6,
)


def shaped(shape: Sequence[int]) -> st.SearchStrategy[Any]:
    """Values that may be valid, also with one dimension more or less."""
    made: st.SearchStrategy[Any] = leaves
    for size in reversed(shape):
        least = 0 if size == -1 else size
        made = st.lists(made, min_size=least, max_size=max(least, 2))
    return made


def agree(inputs: Sequence[TensorSpec], value: object) -> None:
    codec = TensorCodec(make_manifest(inputs))
    # As it comes over HTTP: what orjson makes of a number is what is judged.
    value = orjson.loads(json.dumps(value))
    try:
        codec.decode(value)
        taken = True
    except InvalidInput:
        taken = False
    assert jsonschema_rs.is_valid(dict(codec.item_schema()), value) == taken


def is_at_the_edge(value: Any) -> bool:
    """Whether a number rounds to one that is allowed, or was a float beyond 2**53.

    Numbers are doubles on the way to an array: no schema can say what becomes of the digits.
    """
    if isinstance(value, list | dict):
        return any(map(is_at_the_edge, value.values() if isinstance(value, dict) else value))
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) > 65504


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(DTYPES), st.sampled_from(SHAPES))
def test_schema_agrees_with_the_codec(
    data: st.DataObject, dtype: Dtype, shape: tuple[int, ...]
) -> None:
    value = data.draw(values | shaped(shape) | st.builds(lambda v: {"x": v}, shaped(shape)))
    if not is_at_the_edge(value):
        agree([spec("x", dtype, (-1, *shape))], value)


@settings(max_examples=80, deadline=None)
@given(st.data(), st.sampled_from(SHAPES))
def test_schema_with_missing_values_agrees(data: st.DataObject, shape: tuple[int, ...]) -> None:
    value = data.draw(values | shaped(shape) | st.builds(lambda v: {"x": v}, shaped(shape)))
    if not is_at_the_edge(value):
        agree([spec("x", shape=(-1, *shape)).model_copy(update={"nan": True})], value)
        others = [spec("b", "int64", (-1,)), spec("x", shape=(-1, *shape))]
        agree([each.model_copy(update={"nan": each.name == "x"}) for each in others], value)


def test_picture_schema_allows_strings_and_tensors() -> None:
    how = PicturePreprocess(width=2, height=1, channels=1, mean=(0,), std=(1,))
    manifest = make_manifest([spec("x", shape=(-1, 1, 1, 2))], codec=ImageCodecSpec(preprocess=how))
    schema = dict(codec_for(manifest).item_schema())
    right: list[object] = ["aGk=", [[[0, 1]]], [0, 1], {"x": [0, 1]}]
    wrong: list[object] = [None, 1, [[0, 1]], [0], {"x": "aGk="}, {"y": [0, 1]}]
    assert [jsonschema_rs.is_valid(schema, each) for each in right + wrong] == [True] * 4 + [
        False
    ] * 6
