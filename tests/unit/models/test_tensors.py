"""Arrays: shapes, exact bytes, and tolerances."""

from __future__ import annotations

import base64
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from pydantic import ValidationError

from models.parts import Part
from models.tensors import Array, Dimension, EncodedArray, TensorSpec, Tolerance, stack
from tests.unit.models.manifests import spec

SHAPES = npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
NUMBERS = st.floats(-1e6, 1e6)


def encoded(data: str, shape: tuple[int, ...] = (2,)) -> EncodedArray:
    return EncodedArray(dtype="int16", shape=shape, data=data)


class TestTensorSpec:
    @pytest.mark.parametrize(
        ("shape", "item", "fits"),
        [
            ((-1, -1, 3), (8, 3), True),
            ((-1, -1, 3), (9, 3), False),  # larger than it may be
            ((-1, 9), (9,), True),  # fixed axes know no limit
            ((-1, -1), (0,), True),
            ((-1,), (), True),
        ],
    )
    def test_items_must_fit_shape_and_maximum(
        self, shape: tuple[int, ...], item: tuple[int, ...], fits: bool
    ) -> None:
        free = (Dimension(most=8),) * shape[1:].count(-1)
        limited = TensorSpec(name="x", dtype="float32", shape=shape, dimensions=free)
        assert limited.takes(item) is fits

    def test_axes_have_a_minimum_size(self) -> None:
        bounds = Dimension(name="h", least=7, most=9)
        limited = TensorSpec(name="x", dtype="float32", shape=(-1, -1, 2), dimensions=(bounds,))
        assert [size for size in range(12) if limited.takes((size, 2))] == [7, 8, 9]

    @pytest.mark.parametrize(
        ("fields", "bounds"),
        [
            ({"shape": (-1, -1, 2, -1), "free_max": 8}, [(0, 8), (2, 2), (0, 8)]),
            ({"shape": (-1, -1)}, [(0, 1024)]),
        ],
    )
    def test_manifests_without_dimensions_are_read(
        self, fields: dict[str, object], bounds: list[tuple[int, int]]
    ) -> None:
        old = TensorSpec.model_validate({"name": "x", "dtype": "float32", **fields})
        assert [(axis.least, axis.most) for axis in old.axes] == bounds
        assert TensorSpec.model_validate_json(old.model_dump_json()) == old

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"shape": [-1, -1], "free_max": 0}, "greater than or equal to 1"),
            ({"shape": [-1, -1], "dimensions": [{}, {}]}, "'x': 2 dimensions for 1 free axes"),
            (
                {"shape": [-1, -1], "dimensions": [{"least": 5, "most": 4}]},
                "5 to 4: the range is empty",
            ),
            ({"shape": [-1], "dtype": "float32", "minimum": 0}, "only integers have a range"),
            ({"shape": [-1], "minimum": 3, "maximum": 2}, "the range 3..2 is empty, or outside of"),
            ({"shape": [-1], "dtype": "int8", "maximum": 200}, "of int8, which is -128..127"),
        ],
    )
    def test_invalid_bounds_are_refused(self, fields: dict[str, object], message: str) -> None:
        with pytest.raises(ValidationError, match=re.escape(message)):
            TensorSpec.model_validate({"name": "x", "dtype": "int64", **fields})

    def test_parts_are_frozen_and_reject_unknown_fields(self) -> None:
        part: Part = spec()
        with pytest.raises(ValidationError, match="frozen"):
            part.name = "y"  # type: ignore[attr-defined]
        with pytest.raises(ValidationError, match="Extra inputs"):
            TensorSpec.model_validate({**spec().model_dump(), "size": 3})


class TestEncodedArray:
    @given(npst.arrays(st.sampled_from(["<f4", ">f4", ">i8", "<u1", "?"]), SHAPES))
    def test_the_bytes_are_little_endian_in_row_major_order(self, array: Array) -> None:
        kept = EncodedArray.of(array)
        little = array.astype(array.dtype.newbyteorder("<"))
        assert base64.b64decode(kept.data) == little.tobytes(order="C")
        again = kept.array()
        assert (again.shape, again.dtype) == (array.shape, np.dtype(array.dtype.name))
        assert again.dtype.isnative
        np.testing.assert_array_equal(again, array)

    @pytest.mark.parametrize("array", [np.zeros(2, np.complex64), np.array(["a"])])
    def test_unsupported_dtypes_are_refused(self, array: Array) -> None:
        with pytest.raises(ValidationError):
            EncodedArray.of(array)

    @pytest.mark.parametrize(
        ("data", "shape", "message"),
        [
            ("AAAAAA==", (3,), "golden data has 4 bytes, its shape needs 6"),
            ("AAAA AA==", (2,), "golden data is not base64"),
        ],
    )
    def test_byte_count_must_match_the_shape(
        self, data: str, shape: tuple[int, ...], message: str
    ) -> None:
        with pytest.raises(ValueError, match=re.escape(message)):
            encoded(data, shape).array()


class TestTolerance:
    def test_tolerance_prints_readable_text(self) -> None:
        assert str(Tolerance(absolute=0.1, relative=1e-4)) == "0.1 + 0.0001 * |value|"
        lossy = Tolerance(absolute=0.05, relative=0, of_range=0.25)
        assert str(lossy) == "0.05 + 0 * |value| + 0.25 * max |value|"

    @given(
        npst.arrays(np.float64, 4, elements=NUMBERS),
        npst.arrays(np.float64, 4, elements=NUMBERS),
        st.tuples(st.floats(0, 10), st.floats(0, 1), st.floats(0, 1)),
    )
    def test_tolerance_is_the_sum_of_three_shares(
        self, expected: Array, got: Array, shares: tuple[float, float, float]
    ) -> None:
        absolute, relative, of_range = shares
        tolerance = Tolerance(absolute=absolute, relative=relative, of_range=of_range)
        size = np.abs(expected)
        allowed = absolute + relative * size + of_range * size.max()
        off = np.abs(got - expected)
        excess = tolerance.excess(expected, got)
        if (off < allowed * (1 - 1e-9)).all():
            assert excess is None
        elif (off > allowed * (1 + 1e-9) + 1e-300).any():
            assert excess == f"differs by up to {off.max():.3g} (allowed: {tolerance})"

    @pytest.mark.parametrize(
        ("expected", "got", "passes"),
        [
            ([0.0, 100.0], [9.9, 100.0], True),  # a small sum of large values
            ([0.0, 100.0], [10.1, 100.0], False),
            ([0.0, np.inf], [9.9, np.inf], False),  # infinity is no range
            ([0.0, np.nan, 100.0], [9.9, np.nan, 100.0], True),
        ],
    )
    def test_a_share_of_the_range(
        self, expected: list[float], got: list[float], passes: bool
    ) -> None:
        tolerance = Tolerance(absolute=0, relative=0, of_range=0.1)
        assert (tolerance.excess(np.array(expected), np.array(got)) is None) is passes

    def test_half_precision_is_compared_in_higher_precision(self) -> None:
        expected, got = np.array([60_000], np.float16), np.array([-60_000], np.float16)
        assert Tolerance(absolute=0, relative=2).excess(expected, got) is None
        excess = Tolerance(absolute=0, relative=1).excess(expected, got)
        assert excess is not None
        assert excess.startswith("differs by up to 1.2e+05 ")

    @pytest.mark.parametrize("share", ["absolute", "relative", "of_range"])
    @pytest.mark.parametrize("value", [-1e-9, float("nan"), float("inf")])
    def test_shares_are_finite_and_not_negative(self, share: str, value: float) -> None:
        with pytest.raises(ValidationError):
            Tolerance.model_validate({"absolute": 0, "relative": 0, share: value})


def test_items_are_stacked_by_name_in_order() -> None:
    items = [{"a": np.array([i, -i]), "b": np.float32(i) * np.ones(())} for i in range(3)]
    batch = stack(items)
    assert {name: array.shape for name, array in batch.items()} == {"a": (3, 2), "b": (3,)}
    np.testing.assert_array_equal(batch["a"], [[0, 0], [1, -1], [2, -2]])
    np.testing.assert_array_equal(batch["b"], [0, 1, 2])
    with pytest.raises(ValueError, match="same shape"):
        stack([{"a": np.zeros(2)}, {"a": np.zeros(3)}])
