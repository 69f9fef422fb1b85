"""Samples fit what the model takes, are of a sensible range, and do not change."""

from __future__ import annotations

import base64
import io
from typing import get_args

import numpy as np
import pytest
from PIL import Image

from export.samples import MAX_EXAMPLE, Samples, draw, sample_bytes
from models.manifest import ImageCodecSpec, PicturePreprocess, TensorCodecSpec
from models.tensors import Arrays, Dtype
from tests.unit.models.manifests import spec

IMAGE = ImageCodecSpec(
    preprocess=PicturePreprocess(
        width=5, height=4, channels=3, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.5)
    )
)
PICTURE = (spec("x", shape=(-1, 3, 4, 5)),)


def same(one: list[Arrays], other: list[Arrays]) -> bool:
    return all(
        np.array_equal(a[name], b[name]) for a, b in zip(one, other, strict=True) for name in a
    )


@pytest.mark.parametrize("dtype", get_args(Dtype))
def test_every_dtype_is_drawn_as_such(dtype: Dtype) -> None:
    made = draw((spec("x", dtype, (-1, 50)),), TensorCodecSpec(), np.random.default_rng(1), (7, 9))
    array = made["x"]
    assert array.dtype == np.dtype(dtype)
    assert array.shape == (7, 50)
    assert len(np.unique(array)) > 1


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_integers_are_indices_into_any_table(dtype: Dtype) -> None:
    made = draw((spec("x", dtype, (-1, 50)),), TensorCodecSpec(), np.random.default_rng(1), (7, 9))
    assert set(made["x"].flat) == {0, 1}


def test_free_dimensions_are_of_one_size() -> None:
    inputs = (spec("ids", "int64", (-1, -1)), spec("mask", "bool", (-1, -1)))
    samples = Samples(inputs, TensorCodecSpec(), (3, 5))
    seen = set()
    rng = np.random.default_rng(2)
    for _ in range(20):
        made = samples.random_inputs(rng, 4)
        assert made["ids"].shape == made["mask"].shape
        seen.add(made["ids"].shape)
    assert seen == {(4, 3), (4, 5)}
    assert {item["ids"].shape for item in samples.golden_inputs()} == {(3,), (5,)}


def test_golden_items_are_the_same_at_every_call_and_differ() -> None:
    samples = Samples((spec("x", shape=(-1, 8)),), TensorCodecSpec(), (1,))
    items = samples.golden_inputs()
    assert same(items, samples.golden_inputs())
    assert len({item["x"].tobytes() for item in items}) == len(items) == 3
    assert {item["x"].shape for item in items} == {(8,)}


def test_pictures_are_normalised_pixels() -> None:
    made = draw(PICTURE, IMAGE, np.random.default_rng(3), (200, 1))["x"]
    assert made.dtype == np.float32
    for channel, largest in enumerate((2.0, 2.0, 1.0)):
        values = made[:, channel]
        assert (values.min(), values.max()) == pytest.approx((-largest, largest))


@pytest.mark.parametrize(
    ("inputs", "check"),
    [
        ((spec("x", shape=(-1, 2, 3)),), lambda value: np.shape(value) == (2, 3)),
        ((spec("x", shape=(-1,)),), lambda value: isinstance(value, float)),
        ((spec("x", "bool", (-1, 2)),), lambda value: isinstance(value[0], bool)),
        ((spec("a"), spec("b", "int64")), lambda value: list(value) == ["a", "b"]),
    ],
)
def test_an_example_is_one_item_in_json(inputs: tuple[object, ...], check: object) -> None:
    value = Samples(inputs, TensorCodecSpec(), (1,)).example()  # type: ignore[arg-type]
    assert check(value)  # type: ignore[operator]


def test_a_large_example_is_not_shown() -> None:
    small, large = spec("a", shape=(-1, MAX_EXAMPLE)), spec("b", shape=(-1, MAX_EXAMPLE + 1))
    shown = Samples((small,), TensorCodecSpec(), (1,)).example()
    assert isinstance(shown, list)
    assert len(shown) == MAX_EXAMPLE
    assert Samples((large,), TensorCodecSpec(), (1,)).example() is None
    assert Samples((small, spec("c")), TensorCodecSpec(), (1,)).example() is None


def test_the_bytes_of_a_batch_are_known_before_it_is_drawn() -> None:
    inputs = (spec("x", "float64", (-1, 2, -1)), spec("y", "bool", (-1, -1)))
    made = draw(inputs, TensorCodecSpec(), np.random.default_rng(1), (4, 5))
    assert sample_bytes(inputs, (4, 5)) == sum(array.nbytes for array in made.values()) == 340


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_numbers_of_an_example_are_short(dtype: Dtype) -> None:
    value = Samples((spec("x", dtype, (-1, 40)),), TensorCodecSpec(), (1,)).example()
    assert isinstance(value, list)
    assert max(len(str(number)) for number in value) <= len("-0.12")


@pytest.mark.parametrize("channels", [1, 3])
def test_an_example_of_a_picture_is_one(channels: int) -> None:
    how = PicturePreprocess(
        width=5, height=4, channels=channels, mean=(0.0,) * channels, std=(1.0,) * channels
    )
    samples = Samples(PICTURE, ImageCodecSpec(preprocess=how), (1,))
    value = samples.example()
    assert isinstance(value, str)
    picture = Image.open(io.BytesIO(base64.b64decode(value)))
    assert picture.mode == ("L" if channels == 1 else "RGB")
    assert len(np.unique(np.asarray(picture))) == 256
