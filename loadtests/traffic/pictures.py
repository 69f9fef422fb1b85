"""Draws pictures for models that accept them, and variants of these."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from models.codec_specs import PicturePreprocess
from models.tensors import Array

COARSE = 5  # blobs across and down: smooth, like training data


def draw_picture(how: PicturePreprocess, rng: np.random.Generator) -> Array:
    """Draw soft blobs on black, uint8 [height, width] or [height, width, 3].

    It has the model's size, so it is not scaled and every pixel counts. Its border is black, so
    that changed pixels do not change the detected background.
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
    """Encode a PNG file with little compression, because it costs the load generator time."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def picture_variants(pixels: Array) -> int:
    """Return the number of pictures that `vary_picture` can derive from one."""
    groups, size = _groups(pixels)
    return int(size**groups)


def vary_picture(pixels: Array, number: int) -> Array:
    """Change up to eight values by one grey level; each number gives a different picture."""
    variant = pixels.copy()
    flat = variant.reshape(-1)
    groups, size = _groups(pixels)
    for group in range(groups):
        number, place = divmod(number, size)
        flat[group * size + place] ^= 1
    return variant


def _groups(pixels: Array) -> tuple[int, int]:
    """Return the number and size of groups of values; one value of each changes."""
    groups = min(8, pixels.size)
    return groups, pixels.size // groups
