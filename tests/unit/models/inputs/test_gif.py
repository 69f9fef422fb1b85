"""GIF files: the first picture alone."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from models.codec_specs import PicturePreprocess
from models.inputs.gif import MAX_BLOCKS, first_frame
from models.inputs.pictures import PictureError
from models.inputs.preprocess import MAX_PIXELS, open_picture, preprocess
from models.tensors import Array
from tests.unit.models.pictures import gif, noise

SIZE = (30, 20)
RGB = Image.fromarray(noise(*SIZE[::-1]))
GREY = RGB.convert("L")
GLASS = RGB.copy()
GLASS.putalpha(
    Image.fromarray(np.full(SIZE[::-1], 255, np.uint8) * (np.arange(30) % 2).astype("u1"))
)
HOW = PicturePreprocess(
    width=30, height=20, channels=3, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), fit="stretch"
)
CONTROL = b"!\xf9\x04\x01\0\0\x05\0"  # a transparent colour
COMMENT = b"!\xfe\x01x\0"
HEAD_END = 13 + 3 * 256  # of a file with a palette of 256 colours


def pixels(data: bytes) -> Array:
    with Image.open(io.BytesIO(data)) as picture:
        return np.asarray(picture.convert("RGBA"))


def with_extensions(*extensions: bytes) -> bytes:
    """A GIF file with these before its picture."""
    data = gif(RGB)
    return b"GIF89a" + data[6:HEAD_END] + b"".join(extensions) + data[HEAD_END:]


@pytest.mark.parametrize(
    "data",
    [
        gif(RGB),
        gif(RGB, interlace=0),
        gif(GREY),
        gif(GREY, transparency=9),
        gif(GLASS),
        gif(RGB.convert("1")),
        gif(RGB, comment=b"a comment", duration=9, loop=0),
        with_extensions(CONTROL, COMMENT, CONTROL.replace(b"\x05", b"\x06")),
        with_extensions(b"!\x01\x02ab\x01c\0", b"!\xff\x0bNETSCAPE2.0\x03\x01\0\0\0"),
    ],
)
def test_pixels_stay_as_they_are(data: bytes) -> None:
    found = first_frame(data)
    assert found.orientation == 1
    assert len(found.data) <= len(data)
    np.testing.assert_array_equal(pixels(found.data), pixels(data))
    assert b"comment" not in found.data
    white = Image.new("RGBA", SIZE, "white")
    white.alpha_composite(Image.fromarray(pixels(data)))
    wanted = np.asarray(white.convert("RGB"), np.float32).transpose(2, 0, 1) / 255
    np.testing.assert_allclose(preprocess(data, HOW), wanted, atol=1e-6)


def test_only_the_first_picture_of_an_animation_counts() -> None:
    animation = gif(RGB, save_all=True, append_images=[GREY.convert("RGB"), GLASS])
    np.testing.assert_array_equal(preprocess(animation, HOW), preprocess(gif(RGB), HOW))


def test_damage_is_told() -> None:
    data = gif(RGB)
    for length in range(6, len(data) - 1):  # without its last byte, the end, it is whole
        with pytest.raises(PictureError, match=r"damaged|no picture|cannot be read"):
            preprocess(data[:length], HOW)
    with pytest.raises(PictureError, match="no picture"):
        first_frame(data[:HEAD_END] + b";")


@pytest.mark.parametrize(
    "data",
    [
        with_extensions(b"!\xfe" + b"\x01x" * (2 * MAX_BLOCKS) + b"\0"),
        with_extensions(*[b"!\xfe\0"] * (2 * MAX_BLOCKS)),
        gif(RGB)[: HEAD_END + 11] + b"\x01x" * (2 * MAX_BLOCKS) + b"\0;",
    ],
    ids=["comment", "comments", "pixels"],
)
def test_many_small_blocks_are_refused(data: bytes) -> None:
    with pytest.raises(PictureError, match=r"too many (small blocks|extensions)"):
        first_frame(data)


def test_a_large_picture_is_refused_before_it_is_decoded() -> None:
    side = int(MAX_PIXELS**0.5) + 1
    data = bytearray(gif(RGB))
    data[6:10] = side.to_bytes(2, "little") * 2
    with pytest.raises(PictureError, match="pixels, at most"):
        open_picture(bytes(data), HOW)
    data = bytearray(gif(RGB))
    data[HEAD_END + 1 : HEAD_END + 3] = (60_000).to_bytes(2, "little")  # far to the right
    with pytest.raises(PictureError, match=r"sides may have|pixels, at most"):
        open_picture(bytes(data), HOW)
