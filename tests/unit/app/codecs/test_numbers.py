"""The fast decoder of JSON bodies: what it reads, and what it leaves to the other."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import numpy as np
import orjson
import pytest

from app.codecs.numbers import MAX_PRODUCT_SIZE, NumberReader, is_finite
from app.types import Array, Item
from models.tensors import Dtype
from tests.native import read_floats
from tests.unit.models.manifests import spec

PAIR = [[0, 1.5, -2], [3, 4, 5]]


def body(key: str, value: object) -> bytes:
    return orjson.dumps({key: value}, option=orjson.OPT_SERIALIZE_NUMPY)


class Way:
    """Reads floats of some shape."""

    def reader(self, dtype: Dtype = "float32", shape: tuple[int, ...] = (2, 3)) -> NumberReader:
        return NumberReader(spec("x", dtype, (-1, *shape)), read_floats())

    def one(self, raw: bytes, of: NumberReader | None = None) -> Array | None:
        return self._stacked((of or self.reader()).items("input", raw, None))

    def many(self, raw: bytes, of: NumberReader | None = None, max_items: int = 8) -> Array | None:
        return self._stacked((of or self.reader()).items("inputs", raw, max_items))

    def _stacked(self, items: list[Item] | None) -> Array | None:
        return None if items is None else np.stack([each.arrays["x"] for each in items])


@pytest.fixture
def way() -> Way:
    return Way()


class TestRead:
    @pytest.mark.parametrize("indent", [None, 1])
    @pytest.mark.parametrize("value", [PAIR, [0, 1.5, -2, 3, 4, 5], {"x": PAIR}])
    def test_one_item_nested_or_flat_or_by_name(
        self, way: Way, value: object, indent: int | None
    ) -> None:
        got = way.one(b" \n" + json.dumps({"input": value}, indent=indent).encode() + b"\t\r\n")
        assert got is not None
        np.testing.assert_array_equal(got, np.array([PAIR], np.float32), strict=True)

    @pytest.mark.parametrize(
        ("dtype", "numbers"),
        [
            ("float32", [2**53 - 1, -(2**53) + 1, 16777217, 1e-45]),
            ("float64", [2**53 - 1, -(2**53) + 1, 0.1, 5e-324]),
        ],
    )
    def test_each_dtype_up_to_its_limits(
        self, way: Way, dtype: Dtype, numbers: list[float]
    ) -> None:
        got = way.one(body("input", numbers), way.reader(dtype, (4,)))
        assert got is not None
        np.testing.assert_array_equal(got, np.array([numbers], dtype), strict=True)

    def test_more_numbers_than_one_product_checks(self, way: Way) -> None:
        of = way.reader(shape=(MAX_PRODUCT_SIZE + 1,))
        numbers = np.zeros(MAX_PRODUCT_SIZE + 1, np.float32)
        got = way.one(body("input", numbers), of)
        assert got is not None
        assert got.shape == (1, MAX_PRODUCT_SIZE + 1)
        for large in (1e30, -1e30):
            numbers[-1] = large
            assert way.one(body("input", numbers), of) is None

    def test_reader_continues_after_an_unsupported_body(self, way: Way) -> None:
        of = way.reader()
        for raw in (b'{"input": [[1, 2, 3], [4, 5, "6"]]}', b'{"input": [[1', b"[" * 3000):
            assert way.one(raw, of) is None
            assert way.one(body("input", PAIR), of) is not None

    def test_arrays_outlive_the_next_body(self, way: Way) -> None:
        for dtype in ("float64", "float32"):
            of = way.reader(dtype)
            first = way.one(body("input", [[1, 2, 3], [4, 5, 6]]), of)
            second = way.one(body("input", [[7, 8, 9], [0, 0, 0]]), of)
            assert first is not None
            assert second is not None
            assert first.ravel().tolist() == [1, 2, 3, 4, 5, 6]
            assert second.ravel().tolist() == [7, 8, 9, 0, 0, 0]


class TestUnsupported:
    def test_excessive_nesting(self, way: Way) -> None:
        for depth in (40, 1000, 2000, 100_000):
            assert way.one(b'{"input":' + b"[" * depth + b"]" * depth + b"}") is None
            assert way.many(b'{"inputs":' + b"[" * depth + b"]" * depth + b"}") is None

    @pytest.mark.parametrize(
        ("dtype", "shape", "can"),
        [("float32", (2, 3), True), ("int64", (2, 3), False), ("float32", (-1, 3), False)],
    )
    def test_supported_inputs(self, dtype: Dtype, shape: tuple[int, ...], can: bool) -> None:
        assert NumberReader.can_read(spec("x", dtype, (-1, *shape))) is can

    def test_pictures_and_too_many_items_use_little_memory(self, way: Way) -> None:
        picture = body("inputs", ["A" * 1_000_000])
        crowd = body("inputs", [[0, 0, 0, 0, 0, 0]] * 50_000)
        of = way.reader()
        tracemalloc.start()
        try:
            assert way.many(picture, of) is None
            assert way.many(crowd, of) is None
            assert tracemalloc.get_traced_memory()[1] < 2_000_000  # one byte for each of the body
        finally:
            tracemalloc.stop()

    def test_ragged_lists_of_the_right_count(self, way: Way) -> None:
        of = way.reader(shape=(2, 2, 2))
        assert way.one(b'{"input": [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]}', of) is not None
        assert way.one(b'{"input": [[[1, 2]], [[3, 4], [5, 6], [7, 8]]]}', of) is None


@pytest.mark.parametrize("size", [1, 100, MAX_PRODUCT_SIZE, MAX_PRODUCT_SIZE + 1])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_is_finite_detects_nan_and_infinity(dtype: str, size: int) -> None:
    array = np.full((1, size), np.finfo(dtype).max, dtype)  # whose squares overflow
    assert is_finite(array)
    for wrong in (np.nan, np.inf, -np.inf):
        for at in (0, size // 2, -1):
            spoilt: Any = array.copy()
            spoilt[0, at] = wrong
            assert not is_finite(spoilt)
            assert not is_finite(spoilt.T)
