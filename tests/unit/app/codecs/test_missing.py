"""Missing values: null, NaN and absent keys are NaN, where the model takes it."""

from __future__ import annotations

import io
import json
import tracemalloc

import numpy as np
import orjson
import pytest

from app.codecs.base import NPY, NPZ, OCTET_STREAM
from app.codecs.missing import nan_as_null
from app.codecs.tensor import TensorCodec
from app.engine.keys import KeyMaker
from app.errors import InvalidInput
from app.types import Arrays
from models.tensors import Dtype, TensorSpec
from tests.unit.models.manifests import make_manifest, spec

OTHER_NAN = np.array([0xFFC00001, 0x3F800000], np.uint32).view(np.float32)  # NaN, 1


def missing(name: str, shape: tuple[int, ...] = (), dtype: Dtype = "float32") -> TensorSpec:
    return spec(name, dtype, (-1, *shape)).model_copy(update={"nan": True})


def codec(*inputs: TensorSpec) -> TensorCodec:
    return TensorCodec(make_manifest(inputs))


PERSON = codec(missing("age"), missing("income", dtype="float64"), spec("sex", "int64", (-1,)))
VECTOR = codec(missing("x", (2,)))


def values(arrays: Arrays) -> dict[str, object]:
    """NaN as None."""
    return {name: json.loads(orjson.dumps(array.tolist())) for name, array in arrays.items()}


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ({"age": None, "income": 2, "sex": 1}, (None, 2)),
        ({"income": 2.5, "sex": 1}, (None, 2.5)),
        ({"sex": 1}, (None, None)),
        ({"age": float("nan"), "income": 3, "sex": 1}, (None, 3)),
    ],
)
def test_scalars_may_be_missing(value: object, wanted: tuple[object, object]) -> None:
    item = PERSON.decode(value)
    assert values(item.arrays) == {"age": wanted[0], "income": wanted[1], "sex": 1}
    assert [array.dtype.name for array in item.arrays.values()] == ["float32", "float64", "int64"]


@pytest.mark.parametrize(
    ("value", "wanted"),
    [([1, None], [1, None]), ([None, None], [None, None]), ({"x": [None, 2**70]}, [None, 2.0**70])],
)
def test_numbers_in_lists_may_be_missing(value: object, wanted: list[object]) -> None:
    assert values(VECTOR.decode(value).arrays) == {"x": wanted}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, "got null"),
        ([1, "2"], "not all numbers"),
        ([None, "2"], "not all numbers"),
        ([None, True], "not all numbers"),
        ([None, {}], "not all numbers"),
        ([None, 10**400], "not all numbers"),
        ([[1, 2], None], "ragged"),
        ([None], "shape [1]"),
        ([None, float("inf")], "infinity, or a number too large for float32 at [1]"),
        ([None, 1e300], "infinity, or a number too large for float32 at [1]"),
    ],
)
def test_what_is_no_missing_number_is_rejected(value: object, problem: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        VECTOR.decode(value)
    assert problem in str(caught.value)


def test_error_says_which_inputs_may_be_missing() -> None:
    with pytest.raises(
        InvalidInput,
        match=r"exactly 'age', 'income', 'sex' \('age', 'income' may be missing\), got 'age'",
    ):
        PERSON.decode({"age": 1})
    with pytest.raises(InvalidInput, match="got 'agee', 'sex'"):
        PERSON.decode({"agee": 1, "sex": 1})


@pytest.mark.parametrize("value", [[None, 1], [float("nan"), 1]])
def test_without_a_declaration_it_is_rejected(value: object) -> None:
    plain = codec(spec("x", shape=(-1, 2)))
    with pytest.raises(InvalidInput):
        plain.decode(value)
    with pytest.raises(InvalidInput, match="NaN, infinity"):
        plain.decode_raw(OCTET_STREAM, OTHER_NAN.tobytes(), max_items=None)


def test_every_nan_has_the_same_key() -> None:
    npy, npz = io.BytesIO(), io.BytesIO()
    np.save(npy, OTHER_NAN)
    np.savez(npz, x=OTHER_NAN)
    items = [
        VECTOR.decode([None, 1]),
        *VECTOR.decode_raw(OCTET_STREAM, OTHER_NAN.tobytes(), max_items=None),
        *VECTOR.decode_raw(OCTET_STREAM, OTHER_NAN.tobytes() * 2, max_items=2),
        *VECTOR.decode_raw(NPY, npy.getvalue(), max_items=None),
        *VECTOR.decode_raw(NPZ, npz.getvalue(), max_items=None),
        *VECTOR.decode_arrays({"x": OTHER_NAN[None]}),
    ]
    keys = KeyMaker("")
    assert len(items) == 7
    assert {keys.key(item) for item in items} == {keys.key(items[0])}
    assert keys.key(VECTOR.decode([1, None])) != keys.key(items[0])


@pytest.mark.parametrize("numbers", [[np.inf, 0], [np.nan, -np.inf]])
def test_infinity_is_rejected_in_bytes(numbers: list[float]) -> None:
    with pytest.raises(InvalidInput, match=r"^inputs\[1\]: 'x': infinity"):
        VECTOR.decode_arrays({"x": np.array([[0, np.nan], numbers], np.float32)})


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (b'{"a": [NaN, 1,NaN]}', b'{"a": [null, 1,null]}'),
        (rb'{"NaN": "\" NaN \\", "b": NaN}', rb'{"NaN": "\" NaN \\", "b": null}'),
        (b'[NaN, "NaN', b'[null, "NaN'),
        (b'[NaN, "NaN\\', b'[null, "NaN\\'),
        (b"[-NaN]", b"[-null]"),
    ],
)
def test_nan_outside_of_strings_becomes_null(text: bytes, wanted: bytes) -> None:
    assert nan_as_null(text) == wanted


def test_a_string_without_an_end_is_read_once() -> None:
    """Otherwise this takes hours."""
    rest = b'"' + b'\\"' * 1_000_000
    assert nan_as_null(b"NaN" + rest) == b"null" + rest


@pytest.mark.parametrize("text", [b"[NaN" + b'""' * 500_000, b"[" + b"NaN " * 250_000])
def test_reading_a_text_takes_little_memory(text: bytes) -> None:
    tracemalloc.start()
    nan_as_null(text)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * len(text)
