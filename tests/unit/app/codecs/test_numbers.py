"""The fast decoder of JSON bodies: what it reads, and what it leaves to the other."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import numpy as np
import orjson
import pytest

from app.codecs.numbers import MAX_KEPT_BYTES, MAX_PRODUCT_SIZE, NumberReader, is_finite
from app.types import Array
from models.tensors import Dtype
from tests.unit.models.manifests import spec

PAIR = [[0, 1.5, -2], [3, 4, 5]]


def reader(dtype: Dtype = "float32", shape: tuple[int, ...] = (2, 3)) -> NumberReader:
    return NumberReader(spec("x", dtype, (-1, *shape)))


def body(key: str, value: object) -> bytes:
    return orjson.dumps({key: value}, option=orjson.OPT_SERIALIZE_NUMPY)


def one(raw: bytes, of: NumberReader | None = None) -> Array | None:
    return (of or reader()).read("input", raw, None)


def many(raw: bytes, of: NumberReader | None = None, max_items: int = 8) -> Array | None:
    return (of or reader()).read("inputs", raw, max_items)


class TestRead:
    @pytest.mark.parametrize("indent", [None, 1])
    @pytest.mark.parametrize("value", [PAIR, [0, 1.5, -2, 3, 4, 5], {"x": PAIR}])
    def test_one_item_nested_or_flat_or_by_name(self, value: object, indent: int | None) -> None:
        got = one(b" \n" + json.dumps({"input": value}, indent=indent).encode() + b"\t\r\n")
        assert got is not None
        np.testing.assert_array_equal(got, np.array([PAIR], np.float32), strict=True)

    @pytest.mark.parametrize("shape", [(), (1,), (1, 1), (4,), (2, 1), (1, 2), (2, 3, 4, 2)])
    def test_any_number_of_axes(self, shape: tuple[int, ...]) -> None:
        items = np.random.default_rng(0).standard_normal((3, *shape)).astype(np.float32)
        got = many(body("inputs", items), reader(shape=shape))
        assert got is not None
        np.testing.assert_array_equal(got, items, strict=True)
        if shape:
            got = one(body("input", items[0]), reader(shape=shape))
            assert got is not None
            np.testing.assert_array_equal(got, items[:1], strict=True)

    @pytest.mark.parametrize(
        ("dtype", "numbers"),
        [
            ("float16", [65504, -65504, 0.1, 1e-30]),
            ("float32", [2**53 - 1, -(2**53) + 1, 16777217, 1e-45]),
            ("float64", [2**53 - 1, -(2**53) + 1, 0.1, 5e-324]),
            ("int8", [-128, 127, 0, 1]),
            ("int16", [-(2**15), 2**15 - 1, 0, 1]),
            ("int32", [-(2**31), 2**31 - 1, 0, 1]),
            ("int64", [-(2**63), 2**63 - 1, 0, 1]),
            ("uint8", [0, 255, 1, 2]),
        ],
    )
    def test_each_dtype_to_its_ends(self, dtype: Dtype, numbers: list[float]) -> None:
        got = one(body("input", numbers), reader(dtype, (4,)))
        assert got is not None
        np.testing.assert_array_equal(got, np.array([numbers], dtype), strict=True)

    def test_more_numbers_than_one_product_is_taken_of(self) -> None:
        of = reader(shape=(MAX_PRODUCT_SIZE + 1,))
        numbers = np.zeros(MAX_PRODUCT_SIZE + 1, np.float32)
        got = one(body("input", numbers), of)
        assert got is not None
        assert got.shape == (1, MAX_PRODUCT_SIZE + 1)
        for large in (1e30, -1e30):
            numbers[-1] = large
            assert one(body("input", numbers), of) is None

    def test_many_large_numbers_are_fine_where_none_is_too_large(self) -> None:
        got = one(body("input", [60000] * 6), reader("float16"))
        assert got is not None
        assert got.max() == 60000

    def test_what_was_read_outlives_the_next_body(self) -> None:
        for dtype in ("float64", "int64", "float32"):
            of = reader(dtype)
            first = one(body("input", [[1, 2, 3], [4, 5, 6]]), of)
            second = one(body("input", [[7, 8, 9], [0, 0, 0]]), of)
            assert first is not None
            assert second is not None
            assert first.ravel().tolist() == [1, 2, 3, 4, 5, 6]
            assert second.ravel().tolist() == [7, 8, 9, 0, 0, 0]

    def test_it_reads_on_after_any_body_it_left_alone(self) -> None:
        of = reader()
        for raw in (b'{"input": [[1, 2, 3], [4, 5, "6"]]}', b'{"input": [[1', b"[" * 3000):
            assert one(raw, of) is None
            assert one(body("input", PAIR), of) is not None

    def test_bodies_larger_than_a_parser_is_kept_for(self) -> None:
        numbers = np.arange(MAX_KEPT_BYTES) % 7
        raw = body("input", numbers)
        assert len(raw) > MAX_KEPT_BYTES
        of = reader("int8", (MAX_KEPT_BYTES,))
        for _ in range(2):
            got = one(raw, of)
            assert got is not None
            np.testing.assert_array_equal(got[0], numbers)


class TestLeftAlone:
    def test_ragged_lists_of_the_right_count(self) -> None:
        of = reader(shape=(2, 2, 2))
        assert one(b'{"input": [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]}', of) is not None
        assert one(b'{"input": [[[1, 2]], [[3, 4], [5, 6], [7, 8]]]}', of) is None

    def test_nested_as_deep_as_nothing_is(self) -> None:
        for depth in (40, 1000, 2000, 100_000):
            assert one(b'{"input":' + b"[" * depth + b"]" * depth + b"}") is None
            assert many(b'{"inputs":' + b"[" * depth + b"]" * depth + b"}") is None

    @pytest.mark.parametrize(
        ("dtype", "shape", "can"),
        [("float32", (2, 3), True), ("bool", (2, 3), False), ("float32", (-1, 3), False)],
    )
    def test_which_inputs_can_be_read(
        self, dtype: Dtype, shape: tuple[int, ...], can: bool
    ) -> None:
        assert NumberReader.can_read(spec("x", dtype, (-1, *shape))) is can

    def test_pictures_and_too_many_items_cost_next_to_nothing(self) -> None:
        picture = body("inputs", ["A" * 1_000_000])
        crowd = body("inputs", [[0, 0, 0, 0, 0, 0]] * 50_000)
        of = reader()
        tracemalloc.start()
        try:
            assert many(picture, of) is None
            assert many(crowd, of) is None
            assert tracemalloc.get_traced_memory()[1] < 2_000_000  # one byte for each of the body
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("size", [1, 100, MAX_PRODUCT_SIZE, MAX_PRODUCT_SIZE + 1])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_finite_is_what_has_neither_nan_nor_infinity(dtype: str, size: int) -> None:
    array = np.full((1, size), np.finfo(dtype).max, dtype)  # whose squares overflow
    assert is_finite(array)
    for wrong in (np.nan, np.inf, -np.inf):
        for at in (0, size // 2, -1):
            spoilt: Any = array.copy()
            spoilt[0, at] = wrong
            assert not is_finite(spoilt)
            assert not is_finite(spoilt.T)
