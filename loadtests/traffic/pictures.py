"""Pictures for models that take some, and variants of them."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from models.codec_specs import PicturePreprocess
from models.tensors import Array

COARSE = 5  # blobs of a picture across and down: smooth, as what models were trained on is


def draw_picture(how: PicturePreprocess, rng: np.random.Generator) -> Array:
    """Soft blobs on black, uint8 [height, width] or [height, width, 3].

    It has the size that is not scaled, so that every pixel counts; its border is black, so that a
    pixel more or less does not change what the model takes for the background.
    """
    width, height = (how.resize_shorter or how.width), (how.resize_shorter or how.height)
    layers = []
    for _ in range(how.channels):
        blobs = Image.fromarray(rng.integers(0, 256, (COARSE, COARSE), dtype=np.uint8))
        layers.append(np.array(blobs.resize((width, height), Image.Resampling.BICUBIC)))
    pixels = np.stack(layers, axis=-1)
    pixels[[0, -1]] = 0
    pixels[:, [0, -1]] = 0
    return pixels[..., 0] if how.channels == 1 else pixels


def png(pixels: Array) -> bytes:
    """A PNG file; packed lightly, because the time is the load generator's."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def picture_variants(pixels: Array) -> int:
    """How many pictures `vary_picture` makes of one."""
    groups, size = _groups(pixels)
    return int(size**groups)


def vary_picture(pixels: Array, number: int) -> Array:
    """A picture of which up to eight values are another grey level, by one; each number another."""
    varied = pixels.copy()
    flat = varied.reshape(-1)
    groups, size = _groups(pixels)
    for group in range(groups):
        number, place = divmod(number, size)
        flat[group * size + place] ^= 1
    return varied


def _groups(pixels: Array) -> tuple[int, int]:
    """How many groups of how many values: one value of each is changed."""
    groups = min(8, pixels.size)
    return groups, pixels.size // groups
