"""The parts kept of a picture's file: pixels, orientation, nothing expensive."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageCms, PngImagePlugin

from models.pictures import MAX_CHUNKS, MAX_SEGMENTS, PictureError, essential
from tests.unit.models.pictures import encoded, noise

MIB = 1 << 20
PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
ROTATED = Image.Exif()
ROTATED[0x0112] = 6
ROTATED[0x010E] = "a description"


def pixels(data: bytes) -> bytes:
    with Image.open(io.BytesIO(data)) as picture:
        return picture.tobytes()


def segment(marker: int, data: bytes) -> bytes:
    return b"\xff" + bytes([marker]) + struct.pack(">H", len(data) + 2) + data


def within(jpeg: bytes, *more: bytes) -> bytes:
    """A JPEG file with more behind its first two bytes."""
    return jpeg[:2] + b"".join(more) + jpeg[2:]


def chunk(kind: bytes, data: bytes) -> bytes:
    checksum = struct.pack(">I", zlib.crc32(kind + data))
    return struct.pack(">I", len(data)) + kind + data + checksum


PICTURE = Image.fromarray(noise(20, 30))
PLAIN_JPEG = encoded(PICTURE, "JPEG")
PLAIN_PNG = encoded(PICTURE)
NOTE = segment(0xFE, b"a comment")


class TestSamePixels:
    @pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
    def test_of_every_png(self, mode: str) -> None:
        picture = Image.fromarray(noise(20, 30)).convert("L" if mode == "I;16" else mode)
        if mode == "I;16":
            picture = Image.fromarray(np.arange(600, dtype=np.uint16).reshape(20, 30) * 100)
        data = encoded(picture)
        assert pixels(essential(data)) == pixels(data)

    @pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
    @pytest.mark.parametrize("progressive", [False, True])
    def test_of_every_jpeg(self, mode: str, progressive: bool) -> None:
        buffer = io.BytesIO()
        PICTURE.convert(mode).save(
            buffer, "JPEG", progressive=progressive, icc_profile=PROFILE, exif=ROTATED, comment=b"a"
        )
        left = essential(buffer.getvalue())
        assert pixels(left) == pixels(buffer.getvalue())
        assert PROFILE not in left
        with Image.open(io.BytesIO(left)) as picture:
            assert picture.mode == mode
            assert picture.getexif()[0x0112] == 6
            assert ("progressive" in picture.info) is progressive

    def test_a_transparent_colour_stays(self) -> None:
        buffer = io.BytesIO()
        PICTURE.save(buffer, "PNG", transparency=(1, 2, 3))
        with Image.open(io.BytesIO(essential(buffer.getvalue()))) as picture:
            assert picture.info["transparency"] == (1, 2, 3)

    def test_a_png_keeps_its_orientation_and_loses_texts(self) -> None:
        texts = PngImagePlugin.PngInfo()
        texts.add_text("title", "a title", zip=True)
        buffer = io.BytesIO()
        PICTURE.save(buffer, "PNG", pnginfo=texts, exif=ROTATED, icc_profile=PROFILE)
        with Image.open(io.BytesIO(essential(buffer.getvalue()))) as picture:
            assert picture.getexif()[0x0112] == 6
            assert "title" not in picture.info
            assert "icc_profile" not in picture.info

    def test_an_orientation_that_only_xmp_tells_stays(self) -> None:
        xmp = b'http://ns.adobe.com/xap/1.0/\0<x tiff:Orientation="6"/>'
        with Image.open(io.BytesIO(essential(within(PLAIN_JPEG, segment(0xE1, xmp))))) as picture:
            assert picture.getexif()[0x0112] == 6

    def test_rubbish_before_a_segment_is_left_out(self) -> None:
        assert essential(within(PLAIN_JPEG, NOTE, b"rubbish", b"\xff" * 9)) == essential(PLAIN_JPEG)


@pytest.mark.parametrize("data", [b"", b"GIF89a", b"\x89PNG", b"\xff\xd8", b"<svg/>"])
def test_other_types_are_left_to_the_codec(data: bytes) -> None:
    assert essential(data) == data


class TestBombs:
    """Data that keeps Pillow busy for up to ten seconds, or grows in it."""

    @pytest.mark.parametrize(
        ("data", "why"),
        [
            (within(PLAIN_JPEG, segment(0xFE, b"") * 4 * MIB), f"more than {MAX_SEGMENTS} parts"),
            (within(PLAIN_JPEG, b"\xff\xd0" * 8 * MIB), f"more than {MAX_SEGMENTS} parts"),
            (within(PLAIN_JPEG, segment(0xDB, b"\0" * 65 * 1000) * 200), "too many tables"),
            (within(PLAIN_JPEG, b"\xff\x00" * 8 * MIB), "damaged"),
            (within(PLAIN_JPEG, b"\xff\xe2\0\0" * 4 * MIB), "damaged"),
            (within(PLAIN_JPEG, b"\xff\xe2\xff\xff")[:-50], "damaged"),
            (PLAIN_JPEG[:100], "damaged"),
            (
                PLAIN_PNG[:33] + chunk(b"tEXt", b"a\0b") * MIB + PLAIN_PNG[33:],
                f"more than {MAX_CHUNKS} chunks",
            ),
        ],
        ids=["comments", "markers", "tables", "escapes", "no size", "cut", "cut tables", "texts"],
    )
    def test_parts_without_end_are_refused(self, data: bytes, why: str) -> None:
        with pytest.raises(PictureError, match=why):
            essential(data)

    @pytest.mark.parametrize(
        "data",
        [
            within(PLAIN_JPEG, b"\xff" * 16 * MIB),
            within(PLAIN_JPEG, NOTE, b"a" * 16 * MIB),
            within(PLAIN_JPEG, segment(0xED, b"Photoshop 3.0\0" + b"8BIM" * 16_000) * 200),
            within(PLAIN_JPEG, segment(0xE2, b"MPF\0" + b"a" * 65_000) * 200),
            within(PLAIN_JPEG, segment(0xE2, b"ICC_PROFILE\0\1\1" + b"a" * 65_000) * 200),
            PLAIN_PNG[:33] + chunk(b"zTXt", b"a" * 15 * MIB) + PLAIN_PNG[33:],
            PLAIN_PNG[:33] + chunk(b"eXIf", b"a" * 15 * MIB) + PLAIN_PNG[33:],
        ],
        ids=["fill", "rubbish", "resources", "previews", "profile", "text", "exif"],
    )
    def test_what_makes_no_pixels_is_left_out(self, data: bytes) -> None:
        left = essential(data)
        assert len(left) < 10_000
        with Image.open(io.BytesIO(left)) as picture:
            assert picture.tobytes() in (pixels(PLAIN_JPEG), pixels(PLAIN_PNG))

    def test_of_metadata_that_repeats_the_first_stays(self) -> None:
        exif = segment(0xE1, ROTATED.tobytes())
        again = segment(0xE1, b"Exif\0\0" + b"a" * 65_000)
        assert essential(within(PLAIN_JPEG, exif, again * 200)) == essential(
            within(PLAIN_JPEG, exif)
        )
