"""WebP files: the first picture alone, whose size is known before it is decoded."""

from __future__ import annotations

import io
import tracemalloc

import numpy as np
import pytest
from PIL import Image, ImageOps

from models.codec_specs import PicturePreprocess
from models.inputs.pictures import MAX_CHUNKS, PictureError
from models.inputs.preprocess import geometry_of, open_picture, preprocess
from models.inputs.webp import first_picture
from models.tensors import Array
from tests.unit.models.pictures import exif_data, noise, webp

SIZE = (30, 20)
RGB = Image.fromarray(noise(*SIZE[::-1]))
GLASS = RGB.copy()
GLASS.putalpha(Image.fromarray(noise(*SIZE[::-1], channels=1)[..., 0]))
HOW = PicturePreprocess(
    width=30, height=20, channels=3, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), fit="stretch"
)
KINDS = [{"lossless": True}, {"quality": 90}, {"lossless": True, "exact": True}]


def pixels(data: bytes) -> Array:
    with Image.open(io.BytesIO(data)) as picture:
        return np.asarray(picture.convert("RGBA"))


def chunk(kind: bytes, body: bytes) -> bytes:
    return kind + len(body).to_bytes(4, "little") + body + b"\0" * (len(body) % 2)


def whole(*chunks: bytes) -> bytes:
    body = b"WEBP" + b"".join(chunks)
    return b"RIFF" + len(body).to_bytes(4, "little") + body


@pytest.mark.parametrize("options", KINDS)
@pytest.mark.parametrize("picture", [RGB, GLASS], ids=["RGB", "RGBA"])
def test_pixels_stay_as_they_are(picture: Image.Image, options: dict[str, object]) -> None:
    data = webp(picture, **options, exif=exif_data("<", (0x112, 3, 1)), icc_profile=b"x" * 999)
    found = first_picture(data)
    assert (found.size, found.orientation) == (SIZE, 1)
    assert b"ICCP" not in found.data
    assert b"EXIF" not in found.data
    np.testing.assert_array_equal(pixels(found.data), pixels(data))
    assert preprocess(data, HOW).shape == (3, 20, 30)


@pytest.mark.parametrize("picture", [RGB, GLASS], ids=["plain", "extended"])
def test_bytes_behind_the_end_are_ignored(picture: Image.Image) -> None:
    data = webp(picture, lossless=True, exif=exif_data("<", (0x112, 3, 6)))
    assert first_picture(data + b"EXIFxxxx" * 9) == first_picture(data)


@pytest.mark.parametrize("turned", range(1, 9))
def test_orientation(turned: int) -> None:
    data = webp(RGB, lossless=True, exif=exif_data("<", (0x112, 3, turned)))
    with Image.open(io.BytesIO(data)) as picture:
        upright = ImageOps.exif_transpose(picture)
    how = HOW.model_copy(update={"width": upright.width, "height": upright.height})
    np.testing.assert_array_equal(preprocess(data, how), preprocess(upright.convert("RGB"), how))
    geometry = geometry_of(open_picture(data, how), how)
    assert (geometry.width, geometry.height) == upright.size


def test_an_animation_is_its_first_picture() -> None:
    others = [Image.fromarray(255 - noise(*SIZE[::-1])) for _ in range(3)]
    data = webp(RGB, lossless=True, save_all=True, append_images=others)
    found = first_picture(data)
    assert len(found.data) < 0.6 * len(data)
    np.testing.assert_array_equal(pixels(found.data)[..., :3], np.asarray(RGB))


class TestRefused:
    @pytest.mark.parametrize("options", KINDS)
    @pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.99])
    def test_cut_files(self, options: dict[str, object], share: float) -> None:
        data = webp(RGB, **options)
        cut = data[: max(12, int(share * len(data)))]
        for each in (cut, cut[:4] + (len(cut) - 8).to_bytes(4, "little") + cut[8:]):
            with pytest.raises(PictureError, match="damaged"):
                preprocess(each, HOW)

    @pytest.mark.parametrize("options", KINDS)
    def test_pixels_that_end_early_in_their_chunk(self, options: dict[str, object]) -> None:
        data = webp(RGB, **options)
        body = data[20 : 20 + (len(data) - 20) // 2]
        with pytest.raises(PictureError, match=r"damaged|cannot be read"):
            preprocess(whole(chunk(data[12:16], body)), HOW)

    def test_a_canvas_is_not_allocated_before_its_size_is_checked(self) -> None:
        large = webp(Image.new("RGB", (2001, 2000)), lossless=True)
        assert len(large) < 300
        head = b"\0" * 4 + (2**24 - 1).to_bytes(3, "little") * 2
        vast = whole(chunk(b"VP8X", head), webp(RGB, lossless=True)[12:])
        tracemalloc.start()
        try:
            for data in (large, vast):
                with pytest.raises(PictureError, match=r"4002000 pixels|16777216 x 16777216"):
                    open_picture(data, HOW)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert most < 1 << 20

    def test_two_sizes(self) -> None:
        head = b"\0" * 4 + (40).to_bytes(3, "little") * 2
        with pytest.raises(PictureError, match=r"cannot be read|two sizes"):
            preprocess(whole(chunk(b"VP8X", head), webp(RGB, lossless=True)[12:]), HOW)

    def test_many_parts(self) -> None:
        head = b"\0" * 4 + b"\x1d\0\0\x13\0\0"
        parts = chunk(b"junk", b"") * MAX_CHUNKS
        with pytest.raises(PictureError, match="more than 10000 chunks"):
            first_picture(whole(chunk(b"VP8X", head), parts))

    @pytest.mark.parametrize("body", [b"", b"\x9d\x01\x2a", b"abc\x9d\x01\x2a"])
    def test_no_header(self, body: bytes) -> None:
        for kind in (b"VP8 ", b"VP8L", b"VP8X", b"junk"):
            with pytest.raises(PictureError, match="no header before its pixels"):
                first_picture(whole(chunk(kind, body)))


def test_the_budget_is_charged_before_the_canvas_is_made() -> None:
    charged: list[tuple[int, int]] = []

    def charge(pixels: int, cost: int) -> None:
        charged.append((pixels, cost))
        raise InterruptedError

    with pytest.raises(InterruptedError):
        open_picture(webp(RGB), HOW, charge)
    assert charged[0][0] == 600
    assert charged[0][1] == open_picture(webp(RGB), HOW).cost
