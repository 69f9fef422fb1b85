"""Payloads fit any manifest, and are as unique, popular or duplicated as they say."""

from __future__ import annotations

import base64
import io
from collections import Counter
from typing import Any

import numpy as np
import orjson
import pytest
from PIL import Image

from loadtests.payloads import FREE_SIZES, Payloads, batch_body, body

MATRIX: dict[str, Any] = {
    "inputs": [{"name": "x", "dtype": "float32", "shape": [-1, 2, 3]}],
    "codec": {"kind": "tensor"},
}


def picture_manifest(channels: int) -> dict[str, Any]:
    how: dict[str, Any] = {"width": 7, "height": 5, "channels": channels}
    how |= {"mean": [0.5] * channels, "std": [0.5] * channels}
    shape = [-1, channels, 5, 7]
    return {
        "inputs": [{"name": "image", "dtype": "float32", "shape": shape}],
        "codec": {"kind": "image", "preprocess": how},
    }


def text(item: object) -> bytes:
    return orjson.dumps(item)


def test_unique_items_do_not_repeat() -> None:
    payloads = Payloads(MATRIX, seed=1)
    assert len({text(payloads.unique()) for _ in range(200)}) == 200


def test_one_seed_draws_the_same_and_another_one_does_not() -> None:
    first, same, other = (Payloads(MATRIX, seed=seed).unique() for seed in (1, 1, 2))
    assert first == same
    assert first != other


def test_an_item_has_the_shape_of_the_manifest_without_the_batch_axis() -> None:
    item = np.asarray(Payloads(MATRIX, seed=1).unique())
    assert item.shape == (2, 3)
    assert np.isfinite(item).all()


def test_popular_items_are_the_same_for_all_and_the_first_come_most_often() -> None:
    seen = [Counter[bytes](), Counter[bytes]()]
    for seed, counts in enumerate(seen):
        payloads = Payloads(MATRIX, seed=seed, popular=20)
        counts.update(text(payloads.repeated()) for _ in range(4000))
    assert len(seen[0].keys() | seen[1].keys()) == 20
    (first, often), *_ = ranked = seen[0].most_common()
    assert seen[1].most_common(1)[0][0] == first
    # Zipf with exponent 1.1 over 20 items: 31 % of the draws are the first, 1 % the last.
    assert 0.25 < often / 4000 < 0.36
    assert ranked[-1][1] / 4000 < 0.03


@pytest.mark.parametrize("size", [1, 2, 7, 16])
def test_half_of_a_batch_are_duplicates(size: int) -> None:
    batch = Payloads(MATRIX, seed=3).with_duplicates(size)
    assert len(batch) == size
    assert len({text(item) for item in batch}) == max(1, size // 2)


def test_batches_share_no_items() -> None:
    payloads = Payloads(MATRIX, seed=3)
    first, second = ({text(item) for item in payloads.with_duplicates(8)} for _ in range(2))
    assert not first & second


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB")])
def test_an_image_model_gets_pictures_of_its_size(channels: int, mode: str) -> None:
    item = Payloads(picture_manifest(channels), seed=1).unique()
    assert isinstance(item, str)
    with Image.open(io.BytesIO(base64.b64decode(item, validate=True))) as picture:
        assert (picture.format, picture.size, picture.mode) == ("PNG", (7, 5), mode)


def test_several_inputs_are_an_object_by_name() -> None:
    manifest = {
        "inputs": [
            {"name": "left", "dtype": "float32", "shape": [-1, 2]},
            {"name": "ids", "dtype": "int64", "shape": [-1, 4]},
            {"name": "mask", "dtype": "bool", "shape": [-1, 4]},
        ],
        "codec": {"kind": "tensor"},
    }
    item = Payloads(manifest, seed=1).unique()
    assert isinstance(item, dict)
    arrays = {name: np.asarray(value) for name, value in item.items()}
    shapes = {name: (array.dtype.kind, array.shape) for name, array in arrays.items()}
    assert shapes == {"left": ("f", (2,)), "ids": ("i", (4,)), "mask": ("b", (4,))}


def test_free_dimensions_vary_within_their_sizes() -> None:
    manifest = {
        "inputs": [{"name": "x", "dtype": "float32", "shape": [-1, -1, 2]}],
        "codec": {"kind": "tensor"},
    }
    payloads = Payloads(manifest, seed=1)
    shapes = {np.asarray(payloads.unique()).shape for _ in range(100)}
    assert shapes == {(size, 2) for size in FREE_SIZES}


def test_bodies_are_what_the_routes_read() -> None:
    item = Payloads(MATRIX, seed=1).unique()
    assert orjson.loads(body(item)) == {"input": item}
    assert orjson.loads(batch_body([item, item])) == {"inputs": [item, item]}
