"""The cache: least recently used first out, bounded in honest bytes, with a lifetime."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

from app.engine.cache import MOST_LAYOUTS, PredictionCache, cost_bytes
from app.types import Arrays


def value(number: float) -> Arrays:
    return {"v": np.full(10, number, np.float32)}


def key(number: int) -> bytes:
    return number.to_bytes(32)


def test_process_memory_grows_as_counted() -> None:
    command = [sys.executable, "-m", "tests.unit.app.engine.cache_growth"]
    done = subprocess.run(
        [*command, "20000", "10", "60", "8000"], capture_output=True, text=True, check=True
    )
    growth, counted = (int(number) for number in done.stdout.split())
    assert 1 / 1.5 < growth / counted < 1.5


@pytest.mark.parametrize("use", [PredictionCache.get, PredictionCache.touch])
def test_least_recently_used_value_is_evicted(
    use: Callable[[PredictionCache, bytes], object],
) -> None:
    cache = PredictionCache(3 * cost_bytes(key(0), value(0)), None, timer=lambda: 0.0)
    for number in range(3):
        cache.put(key(number), value(number))
    assert use(cache, key(0))
    assert not use(cache, key(3))
    cache.put(key(3), value(3))
    assert cache.get(key(1)) is None
    assert all(cache.get(key(number)) is not None for number in (0, 2, 3))
    assert cache.used_bytes <= 3 * cost_bytes(key(0), value(0))


def test_entries_expire_after_their_lifetime() -> None:
    now = 0.0
    cache = PredictionCache(1_000_000, 10.0, timer=lambda: now)
    cache.put(key(1), value(1))
    now = 9.9
    assert cache.get(key(1)) is not None
    now = 10.1
    assert not cache.touch(key(1))
    assert cache.get(key(1)) is None
    cache.put(key(2), value(2))
    assert len(cache) == 1


@pytest.mark.parametrize(
    "kept",
    [
        {"v": np.arange(6, dtype=np.float32).reshape(2, 3)},
        {"v": np.array(3, np.int64)},
        {"v": np.zeros((0, 3), np.float16)},
        {"v": np.array([[1, 2], [3, 4]], ">i2").T, "w": np.array([True, False])},
        {"v": np.array([1 + 2j], np.complex64), "w": np.zeros(0), "x": np.array([7], np.uint8)},
        {"v": np.array([1, 2, 3], np.uint8), "w": np.array([4.5], np.float64)},
    ],
)
def test_cached_values_are_returned_unchanged(kept: Arrays) -> None:
    cache = PredictionCache(1_000_000, None, timer=lambda: 0.0)
    for number in range(2):
        cache.put(key(number), kept)
    got = cache.get(key(1))
    assert got is not None
    assert list(got) == list(kept)
    for name, array in got.items():
        assert (array.dtype, array.shape) == (kept[name].dtype, kept[name].shape)
        np.testing.assert_array_equal(array, kept[name])
        assert not array.flags.writeable
        assert array.flags.c_contiguous
        assert array.flags.aligned


def test_many_shapes_are_returned_unchanged() -> None:
    cache = PredictionCache(10_000, None, timer=lambda: 0.0)
    for number in range(2 * MOST_LAYOUTS):
        cache.put(key(number), {"v": np.full(number % 500, number % 256, np.uint8)})
        got = cache.get(key(number))
        assert got is not None
        assert got["v"].tolist() == [number % 256] * (number % 500)


def test_replaced_value_is_counted_once() -> None:
    cache = PredictionCache(1_000_000, None, timer=lambda: 0.0)
    cache.put(key(1), value(1))
    cache.put(key(1), value(2))
    assert cache.used_bytes == cost_bytes(key(1), value(2))
