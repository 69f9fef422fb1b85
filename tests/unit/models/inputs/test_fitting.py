"""Pictures are scaled by Pillow's filters, pixel for pixel, in every fit."""

from __future__ import annotations

import io
from typing import Any, get_args

import numpy as np
import pytest
from PIL import Image

from models.choices import Interpolation
from models.codec_specs import PicturePreprocess
from models.inputs.preprocess import open_picture, preprocess
from models.tensors import Array
from tests.unit.models.pictures import encoded, noise, png_of

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
def test_pad_scales_by_the_filter(interpolation: str) -> None:
    picture = Image.fromarray(noise(30, 60))
    spec = how(20, 20, interpolation=interpolation)
    made = levels(preprocess(encoded(picture), spec))
    np.testing.assert_array_equal(made[5:15], np.asarray(resized(picture, (20, 10), interpolation)))


@pytest.mark.parametrize(("corner", "at"), [("half-even", 4), ("down", 3)])
def test_corner_of_half_a_pixel(corner: str, at: int) -> None:
    """Of 7 pixels too many, 3.5 are cut off at each side."""
    picture = Image.fromarray(noise(60, 90))
    for fit, size in (("crop", (40, 27)), ("stretch", (27, 27))):
        spec = how(20, 20, fit=fit, resize_shorter=27, crop_corner=corner)
        left = (size[0] - 20) // 2 if fit == "crop" else at
        wanted = resized(picture, size, "bilinear").crop((left, at, left + 20, at + 20))
        np.testing.assert_array_equal(
            levels(preprocess(encoded(picture), spec)), np.asarray(wanted)
        )


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


@pytest.mark.parametrize(
    ("fill", "background"),
    [(0, (0, 0, 0)), (114, (114, 114, 114)), ("mean", (51, 102, 204)), ("border", (10, 20, 30))],
)
def test_fill_is_what_surrounds_a_padded_picture(
    fill: str | int, background: tuple[int, ...]
) -> None:
    pixels = np.full((10, 20, 3), (10, 20, 30), np.uint8)
    pixels[3:7, 3:17] = 200
    spec = how(20, 20, fill=fill, mean=(0.2, 0.4, 0.8))
    mean = np.array([0.2, 0.4, 0.8], np.float32)[:, None, None]
    made = levels(preprocess(encoded(Image.fromarray(pixels)), spec) + mean)
    np.testing.assert_array_equal(made[5:15], pixels)
    assert {tuple(row) for row in np.concatenate([made[:5], made[15:]]).reshape(-1, 3)} == {
        background
    }


def test_fill_of_a_grey_picture_is_in_the_models_polarity() -> None:
    pixels = np.full((4, 8), 250, np.uint8)
    fields = {"channels": 1, "mean": (0.0,), "std": (1.0,), "polarity": "auto"}
    made = levels(preprocess(encoded(Image.fromarray(pixels)), how(8, 8, fill=7, **fields)))
    assert made[:, 0, 0].tolist() == [7, 7, 5, 5, 5, 5, 7, 7]


def transparent(mode: str) -> tuple[bytes, Array]:
    """A PNG file of this mode with transparent pixels, and its colours without transparency."""
    if mode in ("RGBA", "LA"):
        picture = Image.fromarray(noise(6, 7, 4)).convert(mode)
        return encoded(picture), np.asarray(picture.convert("RGB"))
    picture = Image.fromarray(noise(6, 7)).convert(mode)
    colours = np.asarray(picture.convert("RGB"))
    picture.info["transparency"] = bytes(99) if mode == "P" else picture.getpixel((0, 0))
    return encoded(picture), colours


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "RGB", "L"])
def test_alpha_drop_keeps_the_colours_of_the_file(mode: str) -> None:
    data, colours = transparent(mode)
    np.testing.assert_array_equal(levels(preprocess(data, how(7, 6, alpha="drop"))), colours)
    assert (levels(preprocess(data, how(7, 6))) != colours).any()


@pytest.mark.parametrize("channels", [1, 3])
def test_alpha_drop_of_16_bit_colours_keeps_them(channels: int) -> None:
    key = (257 * 200, 257 * 9 + 1, 257 * 30)
    data = png_of(np.array([[key]]), 2, 16, trns=b"".join(each.to_bytes(2) for each in key))
    fields = {"channels": channels, "mean": (0.0,) * channels, "std": (1.0,) * channels}
    wanted = Image.new("RGB", (1, 1), (200, 9, 30)).convert("RGB" if channels == 3 else "L")
    made = levels(preprocess(data, how(1, 1, alpha="drop", **fields)))
    np.testing.assert_array_equal(made.squeeze(), np.asarray(wanted).squeeze())
    assert (levels(preprocess(data, how(1, 1, **fields))) == 255).all()
