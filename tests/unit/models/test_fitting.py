"""Pictures are scaled by Pillow's filters, pixel for pixel, in every fit."""

from __future__ import annotations

import io
from typing import Any, get_args

import numpy as np
import pytest
from PIL import Image

from models.codec_specs import Interpolation, PicturePreprocess
from models.preprocess import open_picture, preprocess
from models.tensors import Array
from tests.unit.models.pictures import encoded, noise

FILTERS = get_args(Interpolation)


def how(width: int, height: int, **changes: Any) -> PicturePreprocess:
    fields = {"channels": 3, "mean": (0.0,) * 3, "std": (1.0,) * 3} | changes
    return PicturePreprocess.model_validate({"width": width, "height": height} | fields)


def levels(array: Array) -> Array:
    """Back to 0 .. 255, [height, width, channels]."""
    return np.round(array.transpose(1, 2, 0) * 255).astype(int)


def resized(picture: Image.Image, size: tuple[int, int], interpolation: str) -> Image.Image:
    return picture.resize(size, resample=Image.Resampling[interpolation.upper()])


@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize("size", [(50, 37), (16, 16), (61, 8)])
def test_stretch_is_pillows_resize(size: tuple[int, int], interpolation: str) -> None:
    picture = Image.fromarray(noise(37, 50))
    spec = how(*size, fit="stretch", interpolation=interpolation)
    wanted = np.asarray(resized(picture, size, interpolation))
    np.testing.assert_array_equal(levels(preprocess(encoded(picture), spec)), wanted)


@pytest.mark.parametrize("interpolation", FILTERS)
def test_crop_scales_by_the_filter(interpolation: str) -> None:
    picture = Image.fromarray(noise(60, 90))
    spec = how(16, 16, fit="crop", resize_shorter=20, interpolation=interpolation)
    wanted = np.asarray(resized(picture, (30, 20), interpolation).crop((7, 2, 23, 18)))
    np.testing.assert_array_equal(levels(preprocess(encoded(picture), spec)), wanted)


@pytest.mark.parametrize("interpolation", FILTERS)
def test_pad_scales_by_the_filter(interpolation: str) -> None:
    picture = Image.fromarray(noise(30, 60))
    spec = how(20, 20, interpolation=interpolation)
    made = levels(preprocess(encoded(picture), spec))
    np.testing.assert_array_equal(made[5:15], np.asarray(resized(picture, (20, 10), interpolation)))


def test_ordinary_jpeg_is_stretched_from_its_full_size() -> None:
    data = encoded(Image.fromarray(noise(1500, 2000)), "JPEG")
    spec = how(224, 224, fit="stretch", interpolation="bicubic")
    wanted = np.asarray(resized(Image.open(io.BytesIO(data)), (224, 224), "bicubic"))
    np.testing.assert_array_equal(levels(preprocess(data, spec)), wanted)


def test_large_jpeg_is_stretched_from_a_fraction_of_its_size() -> None:
    data = encoded(Image.linear_gradient("L").resize((4000, 3000)).convert("RGB"), "JPEG")
    spec = how(224, 224, fit="stretch")
    assert open_picture(data, spec).picture.size == (1000, 750)
    wanted = np.asarray(resized(Image.open(io.BytesIO(data)), (224, 224), "bilinear")).astype(int)
    assert np.abs(levels(preprocess(data, spec)) - wanted).max() <= 3


def test_wide_filters_cost_more() -> None:
    data = encoded(Image.new("RGB", (400, 200)))
    costs = [open_picture(data, how(20, 20, interpolation=each)).cost for each in FILTERS]
    least, _, bicubic, lanczos = costs
    assert costs[1] == least < bicubic < lanczos
