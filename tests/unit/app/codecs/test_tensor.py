"""Tensors from JSON values: what is taken, what is rejected, and what the rejection says."""

from __future__ import annotations

import re
import tracemalloc

import numpy as np
import pytest

from app.codecs.base import NPY, NPZ, OCTET_STREAM
from app.codecs.tensor import TensorCodec
from app.errors import InvalidInput, UnsupportedMediaType
from app.types import Array
from models.tensors import Dtype
from tests.unit.models.manifests import make_manifest, spec


def codec(dtype: Dtype = "float32", shape: tuple[int, ...] = (2, 3)) -> TensorCodec:
    return TensorCodec(make_manifest([spec("x", dtype, (-1, *shape))]))


def decode(value: object, dtype: Dtype = "float32", shape: tuple[int, ...] = (2, 3)) -> Array:
    item = codec(dtype, shape).decode(value)
    assert list(item.arrays) == ["x"]
    return item.arrays["x"]


class TestAccepted:
    @pytest.mark.parametrize(
        "value",
        [
            [[0, 1, 2], [3, 4, 5]],
            [[0.0, 1.0, 2.0], [3.0, 4, 5]],
            [0, 1, 2, 3, 4, 5],
            {"x": [[0, 1, 2], [3, 4, 5]]},
            {"x": [0, 1.0, 2, 3, 4, 5]},
        ],
        ids=["ints", "floats", "flat", "object", "flat in object"],
    )
    def test_one_input_has_several_forms(self, value: object) -> None:
        array = decode(value)
        np.testing.assert_array_equal(array, [[0, 1, 2], [3, 4, 5]])
        assert array.dtype == np.float32
        assert array.flags.c_contiguous

    @pytest.mark.parametrize(
        ("value", "dtype", "shape"),
        [
            (1.5, "float64", ()),
            (7, "int8", ()),
            (True, "bool", ()),
            ([1, 0], "bool", (2,)),
            ([True, 0], "bool", (2,)),
            ([[]], "bool", (1, -1)),
            ([-128, 127], "int8", (2,)),
            ([2**63 - 1, -(2**63)], "int64", (2,)),
            ([1.0, 2.0], "int32", (2,)),
            ([2**60, 2**60 + 1], "float32", (2,)),
            ([65504.0], "float16", (1,)),
            ([[1, 2], [3, 4]], "float32", (-1, 2)),
            ([], "float32", (-1,)),
            ([[], []], "float32", (2, -1)),
        ],
    )
    def test_dtypes_and_free_dimensions(
        self, value: object, dtype: Dtype, shape: tuple[int, ...]
    ) -> None:
        array = decode(value, dtype, shape)
        assert array.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(array, np.array(value).astype(dtype))


class TestRejected:
    @pytest.mark.parametrize(
        ("value", "got"),
        [
            ("1.0", "a string"),
            (None, "null"),
            ({}, "an object with nothing"),
            ({"x": [0] * 6, "y": 1}, "an object with 'x', 'y'"),
            (True, "a single number"),
            ([], "shape [0]"),
            ([[1, 2], [3, 4], [5, 6]], "shape [3, 2]"),
            ([[[1, 2, 3], [4, 5, 6]]], "shape [1, 2, 3]"),
            ([[1, 2, 3], [4, 5]], "ragged nesting"),
            ([[1, 2, "3"], [4, 5, 6]], "not all numbers"),
            ([[1, 2, None], [4, 5, 6]], "not all numbers"),
            ([[True, False, True]] * 2, "not all numbers"),
            ([[0.5, 1, 2], [3, 4, False]], "not all numbers"),
            ([0, 1, 2, 3, 4, True], "not all numbers"),
            ([10**400] * 6, "too large"),
        ],
    )
    def test_error_names_expected_and_received_shape(self, value: object, got: str) -> None:
        with pytest.raises(InvalidInput) as caught:
            decode(value)
        assert str(caught.value).startswith("'x': expected float32 of shape [2, 3], got ")
        assert got in str(caught.value)

    @pytest.mark.parametrize("dtype", ["float32", "bool"])
    @pytest.mark.parametrize("nested", [False, True])
    def test_a_long_text_among_numbers_takes_no_memory(self, dtype: Dtype, nested: bool) -> None:
        values: list[object] = ["a" * 100_000, *[0] * 99]  # numpy would make 100 such texts
        tracemalloc.start()
        with pytest.raises(InvalidInput, match="not all"):
            decode([values] if nested else values, dtype, (1, 100))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1_000_000

    @pytest.mark.parametrize(
        ("value", "dtype"),
        [
            (1.5, "int32"),
            (128, "int8"),
            (-1, "uint8"),
            (2**31, "int32"),
            (2**63, "int64"),
            (1e300, "int64"),
            (float("nan"), "int64"),
        ],
    )
    def test_numbers_outside_the_integer_range(self, value: float, dtype: Dtype) -> None:
        with pytest.raises(InvalidInput, match=f"whole numbers in the range of {dtype}"):
            decode([value], dtype, (1,))

    @pytest.mark.parametrize(
        "value",
        [[2**53 + 1, 1.0], [-(2**53) - 1, 0.0], [0.0, 2**53], [2.0**60, 1], [1, -(2.0**53)]],
    )
    def test_integers_a_float_may_have_rounded(self, value: list[float]) -> None:
        with pytest.raises(
            InvalidInput, match=r"^'x': whole numbers of 2\*\*53 and more are exact "
        ):
            decode(value, "int64", (2,))

    @pytest.mark.parametrize(
        ("value", "dtype"),
        [
            (1e39, "float32"),
            (-1e39, "float32"),
            (65520.0, "float16"),
            (10**39 // 10**20, "float16"),
            (float("inf"), "float64"),
            (float("nan"), "float32"),
        ],
    )
    def test_numbers_too_large_for_the_dtype(self, value: float, dtype: Dtype) -> None:
        with pytest.raises(InvalidInput, match=f"too large for {dtype}"):
            decode([value], dtype, (1,))

    @pytest.mark.parametrize(
        "value",
        [
            [2, 0],
            [-1, 1],
            [0.5, 1],
            [True, 2],
            ["yes", "no"],
            [None, True],
            [2**64, 0],
            [10**400, 0],
        ],
    )
    def test_bools_are_true_false_0_or_1(self, value: object) -> None:
        with pytest.raises(InvalidInput, match=r"not all true, false, 0 or 1$"):
            decode(value, "bool", (2,))


class TestSeveralInputs:
    codec = TensorCodec(make_manifest([spec("a", shape=(-1, -1, 2)), spec("b", "int64", (-1, 2))]))

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ([1, 2], "expected an object with 'a', 'b', got a list"),
            ("a", "expected an object with 'a', 'b', got a string"),
            ({}, "expected exactly 'a', 'b', got nothing"),
            ({"a": [[1, 2]]}, "expected exactly 'a', 'b', got 'a'"),
            ({"a": [[1, 2]], "b": [1, 2], "c": 1}, "got 'a', 'b', 'c'"),
            ({"a": [[1, 2]], "b": [1, 2, 3]}, "'b': expected int64 of shape [2], got shape [3]"),
            ({"a": [1, 2], "b": [1, 2]}, "'a': expected float32 of shape [0..1024, 2]"),
        ],
    )
    def test_refused(self, value: object, message: str) -> None:
        with pytest.raises(InvalidInput, match=re.escape(message)):
            self.codec.decode(value)

    def test_only_archives_are_raw(self) -> None:
        assert self.codec.media_types == (NPZ,)
        with pytest.raises(UnsupportedMediaType, match=r"accepts application/json, app.*npz, not"):
            self.codec.decode_raw(NPY, b"", max_items=None)


@pytest.mark.parametrize(
    ("shape", "types"), [((2, 3), (OCTET_STREAM, NPY)), ((-1,), (NPY,)), ((), (OCTET_STREAM, NPY))]
)
def test_raw_media_types(shape: tuple[int, ...], types: tuple[str, ...]) -> None:
    assert codec(shape=shape).media_types == (*types, NPZ)


@pytest.mark.parametrize("media_type", ["text/plain", "image/png", "application/json", ""])
def test_other_media_types_are_refused(media_type: str) -> None:
    ours = "application/json, application/octet-stream, application/x-npy, application/x-npz"
    with pytest.raises(UnsupportedMediaType, match=f"accepts {ours}, not '{media_type}'"):
        codec().decode_raw(media_type, b"", max_items=None)
