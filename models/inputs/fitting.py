"""Changes the shape of a picture to that of the model's input."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from models.codec_specs import PicturePreprocess

VALUE_COST = 2  # cost to scale and normalise a value of the array, as bytes of pixels
# Of longer pictures only the part that a crop keeps is scaled: scaling a whole picture of one pixel
# by MAX_SIDE would fill the memory. The values may then be off by one level of 256.
MAX_ASPECT = 4
# All but `nearest` average over the pixels that a pixel of the result covers, as torchvision and
# Hugging Face's processors do with Pillow's pictures.
FILTERS: Final = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
WIDE_FILTERS: Final = {"bicubic": 1, "lanczos": 3}  # more cost than bilinear, in 1/8 of the pixels


def fit_picture(
    picture: Image.Image, how: PicturePreprocess, border: npt.NDArray[np.uint8]
) -> Image.Image:
    """Scale and pad, crop or stretch a picture to `how.width` x `how.height`, unless fit is none.

    Args:
        picture: with the model's channels, in its polarity.
        how: see `models.codec_specs.PicturePreprocess`.
        border: the pixels of the picture's sides, [n] or [n, 3].
    """
    if how.fit == "none":
        return picture
    placing, resample = placing_of(picture.size, how), FILTERS[how.interpolation]
    if how.fit == "pad":
        return _pad(picture, placing, how, border)
    if how.fit == "crop" and max(placing.size) > MAX_ASPECT * min(placing.size):
        return _crop_narrow(picture, placing, how)
    whole = picture.resize(placing.size, resample)
    left, top = -placing.left, -placing.top
    return whole.crop((left, top, left + how.width, top + how.height))


class Placing(NamedTuple):
    """Where a picture is in the model's input: its size there, and its upper left corner.

    The corner is negative where the picture is cut off.
    """

    size: tuple[int, int]
    left: int
    top: int


def placing_of(size: tuple[int, int], how: PicturePreprocess) -> Placing:
    """Return where `fit_picture` puts a picture of this size.

    The longer side of a cropped picture is rounded down, as torchvision's Resize does.
    """
    if how.fit == "none":
        return Placing(size, 0, 0)
    if how.fit == "pad":
        scale = min(how.width / size[0], how.height / size[1])
        width = max(1, min(how.width, round(size[0] * scale)))
        height = max(1, min(how.height, round(size[1] * scale)))
        return Placing((width, height), (how.width - width) // 2, (how.height - height) // 2)
    if how.fit == "stretch" or how.resize_shorter is None:
        scaled_size = (how.resize_shorter or how.width, how.resize_shorter or how.height)
    else:
        longer = int(how.resize_shorter * max(size) / min(size))
        is_tall = size[0] <= size[1]
        scaled_size = (how.resize_shorter, longer) if is_tall else (longer, how.resize_shorter)
    left, top = _corner(scaled_size, how)
    return Placing(scaled_size, -left, -top)


def scaling_cost(size: tuple[int, int], how: PicturePreprocess) -> int:
    """Return the cost of `fit_picture` for a picture of this size, as bytes of pixels."""
    if how.fit == "none":
        return VALUE_COST * size[0] * size[1] * how.channels
    cost = VALUE_COST * how.width * how.height * how.channels
    cost += WIDE_FILTERS.get(how.interpolation, 0) * size[0] * size[1] * how.channels // 8
    if how.fit == "stretch":
        return cost + (how.resize_shorter or 0) ** 2
    if how.resize_shorter is not None:
        longer = how.resize_shorter * max(size) // max(1, min(size))
        if longer <= MAX_ASPECT * how.resize_shorter:  # see `_crop_narrow`
            cost += how.resize_shorter * longer
    return cost


def _corner(scaled_size: tuple[int, int], how: PicturePreprocess) -> tuple[int, int]:
    """Return where the middle begins in a picture of the size `scaled_size`: left and top."""
    across, down = scaled_size[0] - how.width, scaled_size[1] - how.height
    if how.crop_corner == "down":
        return across // 2, down // 2
    return round(across / 2), round(down / 2)


def _background(how: PicturePreprocess, border: npt.NDArray[np.uint8]) -> tuple[int, ...]:
    """Return the level of each channel around a padded picture."""
    if how.fill == "border":
        return tuple(int(level) for level in np.median(border, axis=0).astype(np.uint8).flat)
    if how.fill == "mean":
        return tuple(round(255 * value) for value in how.mean)
    return (how.fill,) * how.channels


def _pad(
    picture: Image.Image, placing: Placing, how: PicturePreprocess, border: npt.NDArray[np.uint8]
) -> Image.Image:
    size = (how.width, how.height)
    inner = picture.resize(placing.size, FILTERS[how.interpolation])
    if placing.size == size:
        return inner
    canvas = Image.new(picture.mode, size, _background(how, border))
    canvas.paste(inner, (placing.left, placing.top))
    return canvas


def _crop_narrow(picture: Image.Image, placing: Placing, how: PicturePreprocess) -> Image.Image:
    """Scale only the part of a long picture that is kept."""
    across, down = picture.width / placing.size[0], picture.height / placing.size[1]
    left, top = -placing.left, -placing.top
    box = (left * across, top * down, (left + how.width) * across, (top + how.height) * down)
    inside = (*box[:2], min(box[2], picture.width), min(box[3], picture.height))
    return picture.resize((how.width, how.height), FILTERS[how.interpolation], inside)
