"""Pictures of every kind become one kind of array; what is no picture is a PictureError."""

from __future__ import annotations

import io
import random
import struct
import time
from typing import Any

import numpy as np
import pytest
from PIL import Image

from models.choices import Polarity
from models.codec_specs import PicturePreprocess
from models.inputs.fitting import VALUE_COST
from models.inputs.pictures import PictureError
from models.inputs.preprocess import (
    FILE_COST,
    MAX_PIXELS,
    MAX_SIDE,
    ROW_BYTES,
    START_OF_SCAN,
    STRIP_PIXELS,
    open_picture,
    preprocess,
)
from models.tensors import Array
from tests.unit.models.pictures import claiming, encoded, grey, noise, plus


def how(
    width: int = 12, height: int = 12, channels: int = 1, polarity: Polarity = "light-on-dark"
) -> PicturePreprocess:
    return PicturePreprocess.model_validate(
        {
            "width": width,
            "height": height,
            "channels": channels,
            "mean": (0.0,) * channels,
            "std": (1.0,) * channels,
            "polarity": polarity,
        }
    )


def levels(array: Array) -> Array:
    """Back to 0 .. 255."""
    return np.round(array * 255).astype(int)


class TestArray:
    @pytest.mark.parametrize("channels", [1, 3])
    @pytest.mark.parametrize("polarity", ["light-on-dark", "dark-on-light"])
    def test_levels_are_not_scaled(self, channels: int, polarity: Polarity) -> None:
        data = encoded(Image.fromarray(noise(9, 7)))
        normalized = how(6, 5, channels, polarity)
        array = preprocess(data, normalized.model_copy(update={"values": "levels"}))
        assert array.dtype == np.uint8
        assert array.flags.c_contiguous
        np.testing.assert_array_equal(array, levels(preprocess(data, normalized)))

    @pytest.mark.parametrize("channels", [1, 3])
    @pytest.mark.parametrize("form", ["PNG", "JPEG"])
    def test_pictures_that_are_not_scaled(self, form: str, channels: int) -> None:
        picture = Image.fromarray(noise(90, 70))
        data = encoded(picture, form)
        wanted = how(70, 90, channels).model_copy(update={"fit": "stretch"})
        array = preprocess(data, wanted.model_copy(update={"fit": "none", "width": 500}))
        np.testing.assert_array_equal(array, preprocess(data, wanted))

    @pytest.mark.parametrize("channels", [1, 3])
    @pytest.mark.parametrize(
        "how_saved", [{}, {"keep_rgb": True}, {"progressive": True}, {"mode": "CMYK"}]
    )
    def test_jpeg_colours_are_those_of_the_png(
        self, how_saved: dict[str, Any], channels: int
    ) -> None:
        """In every colour space: YCbCr, RGB, and CMYK, which Adobe's marker inverts."""
        smooth = Image.linear_gradient("L").resize((32, 32))
        picture = Image.merge("RGB", (smooth, smooth.rotate(90), smooth.rotate(180)))
        options = dict(how_saved)
        file = io.BytesIO()
        picture.convert(options.pop("mode", "RGB")).save(
            file, "JPEG", quality=100, subsampling=0, **options
        )
        np.testing.assert_allclose(
            levels(preprocess(file.getvalue(), how(32, 32, channels))),
            levels(preprocess(encoded(picture), how(32, 32, channels))),
            atol=4,
        )

    def test_values_match_the_pixels(self) -> None:
        pixels = noise(4, 5)
        array = preprocess(encoded(Image.fromarray(pixels)), how(5, 4, 3))
        np.testing.assert_array_equal(levels(array), pixels.transpose(2, 0, 1))

    def test_normalised_per_channel(self) -> None:
        pixels = np.full((2, 2, 3), (255, 0, 51), np.uint8)
        spec = PicturePreprocess(
            width=2, height=2, channels=3, mean=(0.5, 0.25, 0.0), std=(0.5, 0.25, 2.0)
        )
        array = preprocess(encoded(Image.fromarray(pixels)), spec)
        np.testing.assert_allclose(array[:, 0, 0], [1, -1, 0.1], rtol=1e-6)

    @pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 40), (40, 1), (2, 900)])
    def test_extreme_sizes_are_fitted(self, height: int, width: int) -> None:
        pixels = np.full((height, width), 100, np.uint8)
        assert set(levels(preprocess(grey(pixels), how())).flat) == {100}


class TestGeometry:
    def test_aspect_ratio_is_kept_with_border_padding(self) -> None:
        pixels = np.full((4, 8), 40, np.uint8)
        pixels[1:3, 2:6] = 250
        array = levels(preprocess(grey(pixels), how(64, 64)))[0]
        assert set(array[:16].flat) == set(array[48:].flat) == {40}
        rows, columns = np.nonzero(array > 145)  # half way between ground and block
        assert (rows.min(), rows.max()) == (24, 39)
        assert (columns.min(), columns.max()) == (16, 47)

    def test_border_colour_is_the_median(self) -> None:
        pixels = np.zeros((4, 8), np.uint8)
        pixels[:, 4] = 255
        assert set(levels(preprocess(grey(pixels), how(8, 8)))[0][:2].flat) == {0}

    def test_colour_padding_has_the_colour_of_the_border(self) -> None:
        pixels = np.full((2, 6, 3), (200, 100, 50), np.uint8)
        array = levels(preprocess(encoded(Image.fromarray(pixels)), how(6, 6, 3)))
        assert array[:, 0, 0].tolist() == [200, 100, 50]


class TestPolarity:
    @pytest.mark.parametrize("noisy", [False, True])
    def test_auto_treats_light_and_dark_backgrounds_alike(self, noisy: bool) -> None:
        light_on_dark = np.kron(plus(), np.ones((4, 4), np.uint8))
        if noisy:
            light_on_dark = np.clip(light_on_dark, 0, 235) + noise(48, 48, 1)[:, :, 0] // 13
        one = preprocess(grey(light_on_dark), how(polarity="auto"))
        other = preprocess(grey(255 - light_on_dark), how(polarity="auto"))
        np.testing.assert_allclose(one, other, atol=0.01)
        assert one[0, 0].mean() < 0.1 < one.max()

    @pytest.mark.parametrize(("level", "seen"), [(127, 127), (128, 127), (129, 126)])
    def test_background_is_light_above_the_middle(self, level: int, seen: int) -> None:
        ground = np.full((2, 2), level, np.uint8)
        assert set(levels(preprocess(grey(ground), how(2, 2, polarity="auto"))).flat) == {seen}

    def test_auto_decides_by_the_border(self) -> None:
        pixels = np.full((8, 8), 250, np.uint8)
        pixels[0] = pixels[-1] = pixels[:, 0] = pixels[:, -1] = 0
        array = levels(preprocess(grey(pixels), how(8, 8, polarity="auto")))[0]
        assert (array[0, 0], array[4, 4]) == (0, 250)


PNG = encoded(Image.fromarray(noise(12, 9)))
JPEG = encoded(Image.fromarray(noise(12, 9)), "JPEG")
EXIF = Image.Exif()
EXIF[0x0112] = 6


class TestRejections:
    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"hello",
            b"BM" + bytes(60),
            encoded(Image.new("L", (2, 2)), "TIFF"),
        ],
        ids=["empty", "text", "bmp", "tiff"],
    )
    def test_other_formats(self, data: bytes) -> None:
        with pytest.raises(match="neither a PNG, a JPEG, a WebP nor a GIF"):
            preprocess(data, how())

    @pytest.mark.parametrize(
        ("width", "height"),
        [(MAX_PIXELS + 1, 1), (10_000, 10_000), (1, 150_000_000), (60_000, 60_000)],
    )
    def test_too_many_pixels_are_refused_by_the_header(self, width: int, height: int) -> None:
        with pytest.raises(match="pixels"):
            preprocess(claiming(width, height), how())

    def test_pixel_limit_itself_is_allowed(self) -> None:
        with pytest.raises(match="damaged"):  # it claims more than it has
            preprocess(claiming(MAX_SIDE, MAX_PIXELS // MAX_SIDE), how())

    @pytest.mark.parametrize("size", [(MAX_SIDE + 1, 1), (1, MAX_SIDE + 1)])
    def test_long_sides_are_refused_by_the_header(self, size: tuple[int, int]) -> None:
        with pytest.raises(match=f"at most {MAX_SIDE}"):
            preprocess(claiming(*size), how())

    @pytest.mark.parametrize(
        "whole",
        [
            encoded(Image.fromarray(noise(5, 4)), exif=EXIF.tobytes()),
            encoded(Image.fromarray(noise(5, 4)).convert("P")),
            encoded(Image.fromarray(noise(5, 4)), "JPEG", EXIF.tobytes()),
        ],
        ids=["png", "palette", "jpeg"],
    )
    def test_damage_raises_only_picture_errors(self, whole: bytes) -> None:
        draw = random.Random(3)
        rejected = 0
        for _ in range(600):
            data = bytearray(whole)
            for _ in range(draw.choice((1, 1, 3))):
                data[draw.randrange(len(data))] = draw.randrange(256)
            try:
                array = preprocess(bytes(data), how())
            except PictureError:
                rejected += 1
            else:
                assert array.shape == (1, 12, 12)
        assert rejected > 0


LEAST = FILE_COST + VALUE_COST * 12 * 12  # of any picture for `how()`


@pytest.mark.parametrize(("mode", "pixel_bytes"), [("L", 1), ("P", 1), ("LA", 2), ("RGBA", 4)])
def test_decoding_cost_comes_from_the_header(mode: str, pixel_bytes: int) -> None:
    data = encoded(Image.new(mode, (300, 200)))
    assert open_picture(data, how()).cost == LEAST + 200 * (300 * pixel_bytes + ROW_BYTES)


@pytest.mark.soak
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("side", [224, 1024])
def test_preprocessing_time_stays_within_its_cost(side: int, channels: int) -> None:
    data, large = grey(plus()), how(side, side, channels)
    cropped = large.model_copy(update={"fit": "crop", "resize_shorter": 2 * side})
    sharp = cropped.model_copy(update={"interpolation": "lanczos"})
    for each in (large, cropped, sharp):
        taken = []
        for _ in range(3):
            began = time.thread_time()  # other processes do not count
            preprocess(data, each)
            taken.append(time.thread_time() - began)
        assert min(taken) < 2 * open_picture(data, each).cost / (128 << 20)  # a millisecond each


def test_crop_cost_covers_the_whole_scaled_picture() -> None:
    crop = how().model_copy(update={"fit": "crop", "resize_shorter": 100})
    for size, scaled in (((20, 20), 100), ((10, 40), 400), ((40, 20), 200), ((100, 1), 0)):
        data = encoded(Image.new("L", size))
        assert open_picture(data, crop).cost - open_picture(data, how()).cost == 100 * scaled


def test_deep_and_progressive_pictures_cost_more() -> None:
    wide = encoded(Image.fromarray(np.zeros((200, 300), np.uint16)))
    assert open_picture(wide, how()).cost == LEAST + 200 * (300 * 2 + ROW_BYTES)
    colours = Image.fromarray(noise(200, 300))
    buffer = io.BytesIO()
    colours.save(buffer, "JPEG", progressive=True)
    progressive = open_picture(buffer.getvalue(), how()).cost - LEAST
    baseline = open_picture(encoded(colours, "JPEG"), how()).cost - LEAST
    assert progressive >= 6 * baseline  # a pass over all pixels for each scan


@pytest.mark.parametrize("size", [(300, 700), (STRIP_PIXELS // 8 + 1, 40)])
def test_blending_in_strips_gives_equal_pixels(size: tuple[int, int]) -> None:
    glass = Image.fromarray(noise(size[1], size[0], 4))
    white = Image.new("RGBA", glass.size, "white")
    whole = Image.alpha_composite(white, glass).convert("RGB")
    np.testing.assert_array_equal(
        preprocess(encoded(glass), how(64, 64, 3)), preprocess(whole, how(64, 64, 3))
    )


def test_pillow_warnings_are_suppressed() -> None:
    """Warnings are errors in these tests; in a server each wording would go to the log."""
    entry = struct.pack("<HHII", 0x0112, 5, 1000, 26)  # an orientation that lies behind the end
    exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 1) + entry + bytes(4)
    picture = encoded(Image.fromarray(noise(4, 4)), "JPEG", exif)
    with pytest.warns(UserWarning, match="Tag data larger than file"):
        Image.open(io.BytesIO(picture))
    assert open_picture(picture, how()).picture.size == (4, 4)
    assert preprocess(picture, how()).shape[1:] == (how().height, how().width)


def test_large_jpeg_is_decoded_at_reduced_size() -> None:
    picture = Image.linear_gradient("L").resize((4000, 3000))
    small = preprocess(encoded(picture.resize((400, 300)), "JPEG"), how())
    began = preprocess(encoded(picture, "JPEG"), how())
    np.testing.assert_allclose(began, small, atol=0.05)
    with pytest.raises(match="12000000 pixels"):
        preprocess(encoded(picture, "PNG"), how())


def test_progressive_files_are_limited_by_their_cost() -> None:
    buffer = io.BytesIO()
    Image.linear_gradient("L").resize((2100, 2000)).save(buffer, "JPEG", progressive=True)
    with pytest.raises(match="4200000 pixels"):
        preprocess(buffer.getvalue(), how())
    small = io.BytesIO()
    Image.linear_gradient("L").save(small, "JPEG", progressive=True)
    assert preprocess(small.getvalue(), how()).shape == (1, 12, 12)
    scans = small.getvalue()
    at = scans.rindex(START_OF_SCAN)
    with pytest.raises(match="more than 20 scans"):
        preprocess(scans[:at] + scans[at:-2] * 20 + scans[-2:], how())
