"""Fit `crop` is what torchvision's Resize and CenterCrop do with a picture, pixel for pixel.

Done over by hand with Pillow: the shorter side is resized (bilinear, the longer one rounded down),
the middle cut out (corners rounded half to even), values divided by 255 and normalised.
"""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from models.codec_specs import PicturePreprocess
from models.inputs.preprocess import MAX_SIDE, open_picture, preprocess
from models.tensors import Array
from tests.unit.models.pictures import encoded, noise

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HOW = PicturePreprocess(
    width=224, height=224, channels=3, mean=MEAN, std=STD, fit="crop", resize_shorter=256
)


def by_hand(picture: Image.Image, side: int = 256, crop: tuple[int, int] = (224, 224)) -> Array:
    width, height = picture.size
    if width <= height:
        size = (side, int(side * height / width))
    else:
        size = (int(side * width / height), side)
    resized = picture.resize(size, Image.Resampling.BILINEAR)
    left, top = round((size[0] - crop[0]) / 2), round((size[1] - crop[1]) / 2)
    cut = resized.crop((left, top, left + crop[0], top + crop[1]))
    values = np.asarray(cut, np.float32).transpose(2, 0, 1) / np.float32(255)
    mean, std = (np.array(each, np.float32)[:, None, None] for each in (MEAN, STD))
    return np.asarray((values - mean) / std)


def levels(array: Array) -> Array:
    mean, std = (np.array(each, np.float32)[:, None, None] for each in (MEAN, STD))
    return np.round((array * std + mean) * 255).astype(int)


@pytest.mark.parametrize(
    ("height", "width"),
    [(256, 256), (375, 500), (500, 375), (333, 335), (257, 256), (7, 5), (100, 400), (900, 231)],
)
def test_crop_matches_torchvision(height: int, width: int) -> None:
    picture = Image.fromarray(noise(height, width))
    array = preprocess(encoded(picture), HOW)
    assert array.dtype == np.float32
    assert array.flags.c_contiguous
    np.testing.assert_array_equal(array, by_hand(picture))


@pytest.mark.parametrize(("width", "height", "shorter"), [(20, 30, 31), (31, 20, 31), (8, 8, 8)])
def test_crop_supports_other_sizes(width: int, height: int, shorter: int) -> None:
    how = HOW.model_copy(update={"width": width, "height": height, "resize_shorter": shorter})
    picture = Image.fromarray(noise(50, 81))
    wanted = by_hand(picture, shorter, (width, height))
    np.testing.assert_array_equal(preprocess(encoded(picture), how), wanted)


@pytest.mark.parametrize(("height", "width"), [(1000, 200), (30, 1000), (1, 700), (2000, 2)])
def test_long_pictures_are_scaled_only_in_the_middle(height: int, width: int) -> None:
    picture = Image.fromarray(noise(height, width))
    difference = levels(preprocess(encoded(picture), HOW)) - levels(by_hand(picture))
    assert np.abs(difference).max() <= 1


@pytest.mark.parametrize("size", [(MAX_SIDE, 1), (1, MAX_SIDE)])
def test_longest_picture_is_cropped_before_scaling(size: tuple[int, int]) -> None:
    """Scaled as a whole it would fill the memory."""
    data = encoded(Image.new("RGB", size, (10, 20, 30)))
    assert np.unique(levels(preprocess(data, HOW))).tolist() == [10, 20, 30]


@pytest.mark.parametrize(
    ("size", "decoded"),
    [((4000, 3000), (1000, 750)), ((2000, 3000), (1000, 1500)), ((6000, 700), (3000, 350))],
)
def test_reduced_decoding_keeps_the_needed_size(
    size: tuple[int, int], decoded: tuple[int, int]
) -> None:
    picture = Image.linear_gradient("L").resize(size).convert("RGB")
    data = encoded(picture, "JPEG")
    assert open_picture(data, HOW).picture.size == decoded
    assert np.abs(levels(preprocess(data, HOW)) - levels(by_hand(picture))).max() <= 3


def test_jpeg_too_large_after_reduction_is_refused() -> None:
    side = {"width": 2000, "height": 2000, "resize_shorter": 2000}
    data = encoded(Image.new("RGB", (2100, 2000)), "JPEG")
    with pytest.raises(match="4200000 pixels"):
        open_picture(data, HOW.model_copy(update=side))


def test_rotated_picture_is_turned_before_cropping() -> None:
    upright = Image.fromarray(noise(300, 400))
    exif = Image.Exif()
    exif[0x0112] = 6
    stored = encoded(upright.transpose(Image.Transpose.ROTATE_90), exif=exif.tobytes())
    np.testing.assert_array_equal(preprocess(stored, HOW), by_hand(upright))
