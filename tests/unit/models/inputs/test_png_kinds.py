"""A PNG of any colour type and depth is the 8-bit picture that means the same.

What it means is computed here from the PNG specification: samples are scaled to 8 bits, palettes
looked up, and transparency put on white.
"""

from __future__ import annotations

import io
import struct

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from models.codec_specs import PicturePreprocess
from models.inputs.preprocess import preprocess
from tests.unit.models.pictures import chunk, exif_data, png_of

Samples = npt.NDArray[np.int64]
GREY, RGB, PALETTE, GREY_ALPHA, RGBA = 0, 2, 3, 4, 6
HEIGHT, WIDTH = 11, 13  # not whole bytes at low depths, and all seven pictures when interlaced
HOW = {
    channels: PicturePreprocess(
        width=WIDTH, height=HEIGHT, channels=channels, mean=(0.0,) * channels, std=(1.0,) * channels
    )
    for channels in (1, 3)
}
both = pytest.mark.parametrize("interlaced", [False, True], ids=["straight", "interlaced"])
grey_depths = pytest.mark.parametrize("depth", [1, 2, 4, 8, 16])


def levels(data: bytes | Image.Image, channels: int = 3) -> Samples:
    """What the model gets, in 0 .. 255 [h, w, channels]."""
    return np.round(preprocess(data, HOW[channels]) * 255).astype(np.int64).transpose(1, 2, 0)


def drawn(channels: int, depth: int) -> Samples:
    """Samples of any depth: at 16 bits, those of 8 bits widened."""
    most = min(depth, 8)
    samples = np.random.default_rng(depth).integers(0, 1 << most, (HEIGHT, WIDTH, channels))
    samples[0, 0], samples[-1, -1] = 0, (1 << most) - 1
    return samples * (257 if depth == 16 else 1)


def eight_bits(samples: Samples, depth: int) -> Samples:
    return samples * 255 // ((1 << depth) - 1)


def in_colour(grey: Samples) -> Samples:
    return np.repeat(grey, 3, axis=-1)


def on_white(colours: Samples, alpha: Samples) -> Samples:
    return np.round((colours * alpha + 255 * (255 - alpha)) / 255).astype(np.int64)


class TestWithoutTransparency:
    @both
    @grey_depths
    def test_grey(self, depth: int, interlaced: bool) -> None:
        samples = drawn(1, depth)
        data = png_of(samples, GREY, depth, interlaced=interlaced)
        np.testing.assert_array_equal(levels(data, 1), eight_bits(samples, depth))
        np.testing.assert_array_equal(levels(data), in_colour(eight_bits(samples, depth)))

    @both
    @pytest.mark.parametrize("depth", [8, 16])
    def test_colours(self, depth: int, interlaced: bool) -> None:
        samples = drawn(3, depth)
        data = png_of(samples, RGB, depth, interlaced=interlaced)
        np.testing.assert_array_equal(levels(data), eight_bits(samples, depth))


class TestTransparentColour:
    @both
    @grey_depths
    def test_of_grey_is_white_and_no_other_level(self, depth: int, interlaced: bool) -> None:
        samples = drawn(1, depth)
        for key in np.unique(samples)[[0, 1, -1]].tolist():
            data = png_of(samples, GREY, depth, trns=struct.pack(">H", key), interlaced=interlaced)
            wanted = np.where(samples == key, 255, eight_bits(samples, depth))
            np.testing.assert_array_equal(levels(data, 1), wanted)
            np.testing.assert_array_equal(levels(data), in_colour(wanted))

    @pytest.mark.parametrize("depth", [1, 2, 4, 8])
    def test_bits_above_the_depth_do_not_count(self, depth: int) -> None:
        samples = drawn(1, depth)
        plain = png_of(samples, GREY, depth, trns=b"\0\0")
        above = png_of(samples, GREY, depth, trns=struct.pack(">H", 1 << depth))
        np.testing.assert_array_equal(levels(above), levels(plain))

    @both
    @pytest.mark.parametrize("depth", [8, 16])
    def test_of_colours(self, depth: int, interlaced: bool) -> None:
        samples = drawn(3, depth)
        samples[2:5, 3:6] = key = samples[1, 1].copy()
        data = png_of(samples, RGB, depth, trns=struct.pack(">3H", *key), interlaced=interlaced)
        is_key = (samples == key).all(axis=-1, keepdims=True)
        assert is_key.sum() >= 10
        np.testing.assert_array_equal(
            levels(data), np.where(is_key, 255, eight_bits(samples, depth))
        )

    def test_differs_in_a_low_byte_alone_at_sixteen_bits(self) -> None:
        """The high bytes of its neighbours, or their low bytes, are those of the key."""
        key = (0x1234, 0x5678, 0x9ABC)
        near = [(0x1235, 0x5678, 0x9ABC), (0x1234, 0x5678, 0x9ABD), (0x0034, 0x0078, 0x00BC)]
        samples = np.zeros((HEIGHT, WIDTH, 3), np.int64)
        samples[0, :4] = (key, *near)
        seen = levels(png_of(samples, RGB, 16, trns=struct.pack(">3H", *key)))
        assert seen[0, 0].tolist() == [255, 255, 255]
        assert seen[0, 1:4].tolist() == [[colour >> 8 for colour in each] for each in near]

    @pytest.mark.parametrize("colour", [GREY, RGB])
    @pytest.mark.parametrize("depth", [8, 16])
    def test_is_turned_with_the_picture(self, colour: int, depth: int) -> None:
        samples = drawn(1 if colour == GREY else 3, depth)
        key = samples[1, 2]
        data = png_of(samples, colour, depth, trns=struct.pack(f">{len(key)}H", *key))
        exif = exif_data("<", (0x0112, 3, 3)).removeprefix(b"Exif\0\0")
        end = len(data) - 12
        turned = data[:33] + chunk(b"eXIf", exif) + data[33:end] + data[end:]
        np.testing.assert_array_equal(levels(turned), levels(data)[::-1, ::-1])

    @pytest.mark.parametrize("colour", [GREY, RGB])
    def test_a_picture_in_memory_keeps_its_own(self, colour: int) -> None:
        """Datasets give pictures that Pillow has opened."""
        samples = drawn(1 if colour == GREY else 3, 8)
        key = samples[1, 2]
        data = png_of(samples, colour, 8, trns=struct.pack(f">{len(key)}H", *key))
        with Image.open(io.BytesIO(data)) as opened:
            np.testing.assert_array_equal(levels(opened), levels(data))


class TestAlpha:
    @both
    @pytest.mark.parametrize("depth", [8, 16])
    @pytest.mark.parametrize("colour", [GREY_ALPHA, RGBA])
    def test_is_put_on_white(self, colour: int, depth: int, interlaced: bool) -> None:
        samples = drawn(2 if colour == GREY_ALPHA else 4, depth)
        data = png_of(samples, colour, depth, interlaced=interlaced)
        scaled = eight_bits(samples, depth)
        wanted = on_white(scaled[..., :-1], scaled[..., -1:])
        shown = in_colour(wanted) if colour == GREY_ALPHA else wanted
        np.testing.assert_allclose(levels(data), shown, atol=1)


class TestPalette:
    @both
    @pytest.mark.parametrize("depth", [1, 2, 4, 8])
    @pytest.mark.parametrize("alphas", ["none", "one", "first", "short", "full"])
    def test_of_every_depth(self, depth: int, alphas: str, interlaced: bool) -> None:
        size = 1 << depth
        draw = np.random.default_rng(7)
        palette = draw.integers(0, 256, (size, 3))
        alpha = {
            "none": [],
            "one": [0],
            "first": [255, 0],  # Pillow has its own way for one entry without others
            "short": draw.integers(0, 256, max(1, size // 2)).tolist(),
            "full": draw.integers(0, 256, size).tolist(),
        }[alphas]
        samples = drawn(1, depth)
        data = png_of(
            samples,
            PALETTE,
            depth,
            plte=palette.astype(np.uint8).tobytes(),
            trns=bytes(alpha),
            interlaced=interlaced,
        )
        of_entry = np.array([*alpha, *[255] * (size - len(alpha))])  # missing ones are opaque
        wanted = on_white(palette[samples[..., 0]], of_entry[samples])
        np.testing.assert_allclose(levels(data), wanted, atol=1)
