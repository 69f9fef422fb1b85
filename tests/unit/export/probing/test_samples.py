"""Samples fit what the model takes, are of a sensible range, and do not change."""

from __future__ import annotations

import base64
import io
import json
from typing import get_args

import numpy as np
import pytest
from PIL import Image

from export.probing.examples import Examples
from export.probing.samples import MAX_EXAMPLE, Samples, draw, two_shapes
from models.codec_specs import ImageCodecSpec, PicturePreprocess, TensorCodecSpec
from models.tensors import Arrays, Dimension, Dtype, TensorSpec
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


def samples(inputs: tuple[TensorSpec, ...]) -> Samples:
    return Samples(inputs, TensorCodecSpec(), two_shapes(inputs, (1, 1)))


@pytest.mark.parametrize("dtype", get_args(Dtype))
def test_every_dtype_can_be_drawn(dtype: Dtype) -> None:
    arrays = draw(
        (spec("x", dtype, (-1, 50)),), TensorCodecSpec(), np.random.default_rng(1), 7, ((50,),)
    )
    array = arrays["x"]
    assert array.dtype == np.dtype(dtype)
    assert array.shape == (7, 50)
    assert len(np.unique(array)) > 1


def test_free_dimensions_share_one_size() -> None:
    inputs = (spec("ids", "int64", (-1, -1)), spec("mask", "bool", (-1, -1)))
    samples = Samples(inputs, TensorCodecSpec(), two_shapes(inputs, (3, 5)))
    seen = set()
    rng = np.random.default_rng(2)
    for _ in range(20):
        arrays = samples.random_inputs(rng, 4)
        assert arrays["ids"].shape == arrays["mask"].shape
        seen.add(arrays["ids"].shape)
    assert seen == {(4, 3), (4, 5)}
    assert {item["ids"].shape for item in samples.golden_inputs()} == {(3,), (5,)}


@pytest.mark.parametrize(
    ("low", "high", "seen"),
    [(0, 3, {0, 1, 2, 3}), (5, 6, {5, 6}), (-4, None, {0, 1}), (None, -3, {-4, -3}), (7, 7, {7})],
)
@pytest.mark.parametrize("dtype", ["int8", "int64"])
def test_integers_stay_in_their_range(
    low: int | None, high: int | None, seen: set[int], dtype: Dtype
) -> None:
    x = TensorSpec(name="x", dtype=dtype, shape=(-1, 50), minimum=low, maximum=high)
    arrays = draw((x,), TensorCodecSpec(), np.random.default_rng(1), 7, ((50,),))
    assert set(arrays["x"].flat) == seen


@pytest.mark.parametrize(
    ("bounds", "sizes", "expected"),
    [
        ([(0, 1024), (0, 1024)], (3, 5), ([3, 3], [5, 5])),
        ([(0, 4), (0, 1024)], (3, 5), ([3, 3], [4, 4])),
        ([(7, 9), (2, 20)], (3, 5), ([7, 7], [8, 8])),
        ([(1, 1), (0, 9)], (3, 5), ([1, 3], [1, 5])),
    ],
)
def test_sizes_are_two_equal_choices_within_bounds(
    bounds: list[tuple[int, int]], sizes: tuple[int, int], expected: object
) -> None:
    dimensions = tuple(Dimension(least=least, most=most) for least, most in bounds)
    x = TensorSpec(name="x", dtype="int8", shape=(-1, -1, 2, -1), dimensions=dimensions)
    result = two_shapes((x,), sizes)
    assert tuple([shapes[0][0], shapes[0][2]] for shapes in result) == expected


def test_golden_items_are_reproducible_and_distinct() -> None:
    samples = Samples((spec("x", shape=(-1, 8)),), TensorCodecSpec(), (((8,),),))
    items = samples.golden_inputs()
    assert same(items, samples.golden_inputs())
    assert len({item["x"].tobytes() for item in items}) == len(items) == 3
    assert {item["x"].shape for item in items} == {(8,)}


def test_pictures_are_normalised_pixels() -> None:
    arrays = draw(PICTURE, IMAGE, np.random.default_rng(3), 200, ((3, 4, 5),))["x"]
    assert arrays.dtype == np.float32
    for channel, largest in enumerate((2.0, 2.0, 1.0)):
        values = arrays[:, channel]
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
def test_an_example_is_one_item_in_json(inputs: tuple[TensorSpec, ...], check: object) -> None:
    value = samples(inputs).example()
    assert check(value)  # type: ignore[operator]


def test_a_large_example_is_not_shown() -> None:
    small, large = spec("a", shape=(-1, MAX_EXAMPLE)), spec("b", shape=(-1, MAX_EXAMPLE + 1))
    display = samples((small,)).example()
    assert isinstance(display, list)
    assert len(display) == MAX_EXAMPLE
    assert samples((large,)).example() is None
    assert samples((small, spec("c"))).example() is None


@pytest.mark.parametrize("channels", [1, 3])
def test_picture_example_is_a_picture(channels: int) -> None:
    how = PicturePreprocess(
        width=5, height=4, channels=channels, mean=(0.0,) * channels, std=(1.0,) * channels
    )
    samples = Samples(PICTURE, ImageCodecSpec(preprocess=how), (((3, 4, 5),),))
    value = samples.example()
    assert isinstance(value, str)
    picture = Image.open(io.BytesIO(base64.b64decode(value)))
    assert picture.mode == ("L" if channels == 1 else "RGB")
    assert len(np.unique(np.asarray(picture))) == 256


def test_some_numbers_are_missing_where_that_is_declared() -> None:
    specs = (spec("x", shape=(-1, 4)), spec("age", shape=(-1,)), spec("y", shape=(-1, 4)))
    inputs = tuple(each.model_copy(update={"nan": each.name != "y"}) for each in specs)
    real = Examples(
        tuple({s.name: np.ones(s.item_shape, np.float32) for s in inputs} for _ in "ab")
    )
    for source in (TensorCodecSpec(), real):
        shapes = tuple(each.item_shape for each in inputs)
        arrays = draw(inputs, source, np.random.default_rng(1), 64, shapes)
        missing = {name: np.isnan(array) for name, array in arrays.items()}
        assert not missing["y"].any()
        lists = missing["x"]
        for some in (lists.any(axis=1), missing["age"]):
            assert np.unique(some).tolist() == [False, True]
        assert not lists.all(axis=1).any()  # many models answer such an item with NaN
    assert all(np.isfinite(array).all() for item in real.items for array in item.values())


def test_the_example_is_whole_and_golden_ones_may_lack_numbers() -> None:
    inputs = (spec("x", shape=(-1, 8)).model_copy(update={"nan": True}),)
    result = samples(inputs)
    assert not np.isnan(result.golden_inputs()[0]["x"]).any()
    assert any(np.isnan(item["x"]).any() for item in result.golden_inputs())
    real = Examples(tuple({"x": np.full(8, each, np.float32)} for each in (np.nan, 1)))
    display = Samples(inputs, TensorCodecSpec(), ((inputs[0].item_shape,),), real).example()
    assert display in ([None] * 8, [1.0] * 8)
    assert json.dumps(display, allow_nan=False)
