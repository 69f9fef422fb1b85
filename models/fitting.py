"""Changes the shape of a picture to that of the model's input."""

from __future__ import annotations

from typing import Final

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


def fitted(
    picture: Image.Image, how: PicturePreprocess, border: npt.NDArray[np.uint8]
) -> Image.Image:
    """Scale and pad, crop or stretch a picture to `how.width` x `how.height`.

    Args:
        picture: with the model's channels, in its polarity.
        how: see `models.codec_specs.PicturePreprocess`.
        border: the pixels of the picture's sides, [n] or [n, 3].
    """
    size, resample = (how.width, how.height), FILTERS[how.interpolation]
    if how.fit == "stretch":
        scaled = (how.resize_shorter or how.width, how.resize_shorter or how.height)
        left, top = _corner(scaled, how)
        whole = picture.resize(scaled, resample)
        return whole.crop((left, top, left + size[0], top + size[1]))
    if how.resize_shorter is not None:
        return _crop(picture, how, how.resize_shorter)
    return _pad(picture, size, _background(how, border), resample)


def scaling_cost(size: tuple[int, int], how: PicturePreprocess) -> int:
    """Return the cost of `fitted` for a picture of this size, as bytes of pixels."""
    cost = VALUE_COST * how.width * how.height * how.channels
    cost += WIDE_FILTERS.get(how.interpolation, 0) * size[0] * size[1] * how.channels // 8
    if how.fit == "stretch":
        return cost + (how.resize_shorter or 0) ** 2
    if how.resize_shorter is not None:
        longer = how.resize_shorter * max(size) // max(1, min(size))
        if longer <= MAX_ASPECT * how.resize_shorter:  # see `_crop`
            cost += how.resize_shorter * longer
    return cost


def _corner(scaled: tuple[int, int], how: PicturePreprocess) -> tuple[int, int]:
    """Return where the middle begins in a picture of the size `scaled`: left and top."""
    across, down = scaled[0] - how.width, scaled[1] - how.height
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
    picture: Image.Image,
    size: tuple[int, int],
    background: tuple[int, ...],
    resample: Image.Resampling,
) -> Image.Image:
    scale = min(size[0] / picture.width, size[1] / picture.height)
    width = max(1, min(size[0], round(picture.width * scale)))
    height = max(1, min(size[1], round(picture.height * scale)))
    scaled = picture.resize((width, height), resample)
    if (width, height) == size:
        return scaled
    canvas = Image.new(picture.mode, size, background)
    canvas.paste(scaled, ((size[0] - width) // 2, (size[1] - height) // 2))
    return canvas


def _crop(picture: Image.Image, how: PicturePreprocess, shorter: int) -> Image.Image:
    """Return the middle of the picture, scaled so that its shorter side has `shorter` pixels.

    The longer side is rounded down, as torchvision's Resize does.
    """
    size, resample = (how.width, how.height), FILTERS[how.interpolation]
    longer = int(shorter * max(picture.size) / min(picture.size))
    scaled = (shorter, longer) if picture.width <= picture.height else (longer, shorter)
    left, top = _corner(scaled, how)
    if longer <= MAX_ASPECT * shorter:
        whole = picture.resize(scaled, resample)
        return whole.crop((left, top, left + size[0], top + size[1]))
    across, down = picture.width / scaled[0], picture.height / scaled[1]
    box = (left * across, top * down, (left + size[0]) * across, (top + size[1]) * down)
    inside = (*box[:2], min(box[2], picture.width), min(box[3], picture.height))
    return picture.resize(size, resample, inside)
