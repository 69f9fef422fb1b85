"""Converts a picture to an array, for training, export, load payloads and serving."""

from __future__ import annotations

import importlib
import io
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from models.codec_specs import PicturePreprocess
from models.inputs.fitting import fit_picture, placing_of, scaling_cost
from models.inputs.gif import first_frame, is_gif
from models.inputs.pictures import (
    ORIENTATION,
    PictureError,
    check_rows,
    essential,
    transparent_grey,
)
from models.inputs.webp import first_picture, is_webp
from models.places import Geometry
from models.system.quiet import ignore_warnings
from models.tensors import Array

# Checked in the header, before any pixel is decoded. JPEG files can be decoded at a fraction of
# their size, so unmodified photographs are accepted.
MAX_PIXELS = 4_000_000  # to decode
MAX_JPEG_PIXELS = 50_000_000  # in a file, unless it is progressive, where that saves no work
MAX_JPEG_SCANS = 20  # encoders write about ten; each costs a pass over all pixels
MAX_SIDE = 20_000  # each row costs extra time: 20 ns to decode, and more at the border
ROW_BYTES = 16  # cost of a row, as bytes of pixels
FILE_COST = 24 << 10  # minimum cost of a picture, as bytes of pixels
STRIP_PIXELS = 100_000  # put on white at once, while Pillow holds the GIL for about half a ms
START_OF_SCAN = b"\xff\xda"  # cannot occur in compressed data, where 0 follows each 255
WEBP_PIXEL_BYTES = 16  # cost of a pixel: noise in high quality takes 100 ns
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
# Pillow keeps one byte of each two of 16-bit RGB: the high one, or the low one if they are swapped.
HIGH_BYTES, LOW_BYTES = "RGB;16B", "RGB;16L"
KEY = "transparency"  # Pillow's name of the colour that is transparent, or of the palette's alpha
TRANSPOSES = {  # turn each orientation upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SIDEWAYS = frozenset((5, 6, 7, 8))  # orientations that swap width and height
# In the upright picture: whether left and right, or top and bottom, are those of the file swapped.
MIRRORED_AXES = {
    2: (True, False),
    3: (True, True),
    4: (False, True),
    6: (True, False),
    7: (True, True),
    8: (False, True),
}
PILLOW = r"PIL\."  # warns about large and damaged pictures, so clients could fill the log
# Raised by Pillow's parsers of headers and pixels for invalid bytes.
DAMAGE = (
    *(OSError, ValueError, SyntaxError, TypeError, LookupError, ArithmeticError, EOFError),
    *(struct.error, Image.DecompressionBombError),
)


def preprocess(picture: bytes | OpenedPicture | Image.Image, how: PicturePreprocess) -> Array:
    """Convert a picture to the array that a model accepts.

    Applies the orientation from EXIF or XMP, applies `how.alpha`, converts colours to
    `how.channels`, determines the polarity, scales with `how.interpolation` and
    pads, crops or stretches, and normalises the values.

    Args:
        picture: the bytes of a file, see `FORMATS`, the result of `open_picture`, or pixels. Prefer
            bytes to a PNG file that Pillow opened: it loses transparent colours that are not of 8
            bits.
        how: size, channels, normalisation and polarity, from the manifest.

    Returns:
        array [channels, height, width], float32 or uint8: see `how.values`.

    Raises:
        PictureError: if the bytes are of no known format, damaged, or have too many pixels.
    """
    if isinstance(picture, bytes):
        picture = open_picture(picture, how)
    if isinstance(picture, OpenedPicture):
        upright = _upright(picture, how)
    else:
        upright = _turn_upright(picture, picture.getexif().get(ORIENTATION, 1))
    picture = _flatten(upright, how)
    border = _border(picture)
    if _must_invert(how, border):
        picture = ImageOps.invert(picture)
        border = 255 - border
    levels = np.asarray(fit_picture(picture, how, border))
    levels = levels.reshape(*levels.shape[:2], how.channels)
    if how.values == "levels":
        return np.ascontiguousarray(levels.transpose(2, 0, 1))
    values = levels.astype(np.float32) / 255
    values = (values - np.array(how.mean, np.float32)) / np.array(how.std, np.float32)
    return np.ascontiguousarray(values.transpose(2, 0, 1), dtype=np.float32)


class OpenedPicture(NamedTuple):
    """A picture whose header was read.

    Attributes:
        picture: with the size at which it will be decoded.
        cost: of decoding and preprocessing it, as the bytes of its pixels in the file; 128 KiB take
            about a millisecond or less.
        data: the file, see `models.inputs.pictures.essential`.
        orientation: how the camera was held, as EXIF numbers it.
        size: of the picture in the file: width, height.
        reduction: how many pixels of the file, across and down, become one when it is decoded.
    """

    picture: Image.Image
    cost: int
    data: bytes
    orientation: int
    size: tuple[int, int]
    reduction: int

    @property
    def upright_size(self) -> tuple[int, int]:
        """Width and height of the picture as it is meant to be seen."""
        return self.size[::-1] if self.orientation in SIDEWAYS else self.size


def geometry_of(opened_picture: OpenedPicture, how: PicturePreprocess) -> Geometry:
    """Return how the upright picture maps to the array that `preprocess` makes of it.

    A JPEG file that is decoded at a fraction of its size ends with a pixel that is only in part of
    the picture, unless its size is a multiple.
    """
    is_turned = opened_picture.orientation in SIDEWAYS
    width, height = opened_picture.upright_size
    decoded_size = opened_picture.picture.size[::-1] if is_turned else opened_picture.picture.size
    placing = placing_of(decoded_size, how)
    scale, offset = [], []
    for whole, pixels, side, corner, is_mirrored in zip(
        (width, height),
        decoded_size,
        placing.size,
        (placing.left, placing.top),
        MIRRORED_AXES.get(opened_picture.orientation, (False, False)),
        strict=True,
    ):
        beyond = pixels * opened_picture.reduction - whole if is_mirrored else 0
        scale.append(side / (pixels * opened_picture.reduction))
        offset.append(corner + beyond * scale[-1])
    return Geometry(width, height, (scale[0], scale[1]), (offset[0], offset[1]))


def open_picture(
    data: bytes, how: PicturePreprocess, charge: Callable[[int, int], None] | None = None
) -> OpenedPicture:
    """Read only the header.

    A JPEG file is decoded at the smallest fraction of its size that is at least twice its scaled
    size. For cropped and stretched pictures this applies only above `MAX_PIXELS`, so that an
    adopted model gets exactly the pixels that it got elsewhere.

    `charge` is called with the pixels to decode and the cost, before memory is taken for them.

    Raises:
        PictureError: if the bytes are no PNG, JPEG, WebP or GIF, or have too many pixels or parts.
    """
    if is_webp(data):
        return _open_webp(data, how, charge)
    data, orientation = first_frame(data) if is_gif(data) else essential(data)
    picture = _open(data)
    if KEY in picture.info and picture.mode in ("1", "L") and picture.format == "PNG":
        picture.info[KEY] = transparent_grey(data)  # Pillow scales the pixels, but not this
    _check_sides(picture.size)
    whole = picture.width * picture.height
    scans = data.count(START_OF_SCAN) if picture.format == "JPEG" else 1
    if scans > MAX_JPEG_SCANS:
        raise PictureError(f"the JPEG file has more than {MAX_JPEG_SCANS} scans; save it again")
    cost = scans * (whole * _pixel_bytes(picture) + picture.height * ROW_BYTES)
    cost += FILE_COST + scaling_cost(picture.size, how)
    size, reduction = picture.size, 1
    if whole <= MAX_JPEG_PIXELS and "progressive" not in picture.info:
        reduction = _draft(picture, how)
    if whole > MAX_JPEG_PIXELS or picture.width * picture.height > MAX_PIXELS:
        raise _too_large(whole)
    if charge is not None:
        charge(picture.width * picture.height, cost)
    return OpenedPicture(picture, cost, data, orientation, size, reduction)


def _open_webp(
    data: bytes, how: PicturePreprocess, charge: Callable[[int, int], None] | None
) -> OpenedPicture:
    data, orientation, size = first_picture(data)
    _check_sides(size)
    pixels = size[0] * size[1]
    if pixels > MAX_PIXELS:
        raise _too_large(pixels)
    cost = 2 * FILE_COST + WEBP_PIXEL_BYTES * pixels + scaling_cost(size, how)
    if charge is not None:
        charge(pixels, cost)
    picture = _open(data)
    if picture.size != size:
        raise PictureError("the picture is damaged: it has two sizes")
    return OpenedPicture(picture, cost, data, orientation, size, 1)


def import_readers() -> None:
    """Import the readers of all formats, as Pillow would at the first picture: 40 ms, WebP 140."""
    Image.preinit()
    importlib.import_module("PIL.WebPImagePlugin")


def _open(data: bytes) -> ImageFile.ImageFile:
    try:
        ignore_warnings(module=PILLOW)
        return Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError as error:
        raise PictureError("neither a PNG, a JPEG, a WebP nor a GIF picture") from error
    except DAMAGE as error:
        raise PictureError(f"the picture cannot be read: {error}") from error


def _check_sides(size: tuple[int, int]) -> None:
    if max(size) > MAX_SIDE:
        raise PictureError(
            f"the picture has {size[0]} x {size[1]} pixels, its sides may have at most {MAX_SIDE}; "
            "cut it or scale it down"
        )


def _too_large(pixels: int) -> PictureError:
    return PictureError(
        f"the picture has {pixels} pixels, at most {MAX_PIXELS} are allowed (for models of small "
        f"pictures {MAX_JPEG_PIXELS} in a JPEG file that is not progressive); scale it down"
    )


def _pixel_bytes(picture: ImageFile.ImageFile) -> int:
    """Return the bytes of a pixel in the file, or in memory if transparency adds channels."""
    is_deep = any("16" in str(tile.args) for tile in picture.tile)  # Pillow's mode may be 8 bits
    bands = 4 if KEY in picture.info else len(picture.getbands())
    return bands * (2 if is_deep else 1) * (2 if _has_deep_key(picture) else 1)


def _has_deep_key(picture: Image.Image) -> bool:
    """Whether an unread picture has 16-bit RGB pixels, of which one colour is transparent."""
    tiles = picture.tile if isinstance(picture, ImageFile.ImageFile) else ()
    return KEY in picture.info and any(tile.args == HIGH_BYTES for tile in tiles)


def _draft(picture: Image.Image, how: PicturePreprocess) -> int:
    """Choose the fraction for decoding a JPEG file, never less than its scaled size.

    Returns:
        how many pixels of the file, across and down, become one.
    """
    if how.fit == "none":
        return 1
    shorter, is_large = how.resize_shorter, picture.width * picture.height > MAX_PIXELS
    width, draft = picture.width, None
    if shorter is None and (is_large or how.fit == "pad"):
        draft = picture.draft(None, (2 * how.width, 2 * how.height))
    elif shorter is not None and is_large:
        twice = min(picture.size) >= 4 * shorter  # half of it is then twice the needed size
        draft = picture.draft(None, (2 * shorter, 2 * shorter) if twice else (shorter, shorter))
    return 1 if draft is None else round(width / draft[1][2])


def _upright(opened_picture: OpenedPicture, how: PicturePreprocess) -> Image.Image:
    ignore_warnings(module=PILLOW)
    check_rows(opened_picture.data)
    has_deep_key = how.alpha == "white" and _has_deep_key(opened_picture.picture)
    try:
        opened_picture.picture.load()  # Pillow decodes lazily: here, not when opening
        if has_deep_key:
            _put_deep_key_on_white(opened_picture)
    except DAMAGE as error:
        raise PictureError(f"the picture is damaged: {error}") from error
    if opened_picture.picture.mode == "P" and opened_picture.picture.palette is None:
        raise PictureError("the picture is damaged: it has no palette")
    return _turn_upright(opened_picture.picture, opened_picture.orientation)


def _put_deep_key_on_white(opened_picture: OpenedPicture) -> None:
    """Put the transparent colour of 16-bit RGB on white; other colours may share its high bytes."""
    picture = opened_picture.picture
    key = np.array(picture.info.pop(KEY), np.uint16)
    low = Image.open(io.BytesIO(opened_picture.data), formats=("PNG",))
    low.tile = [tile._replace(args=LOW_BYTES) for tile in low.tile]
    for box in _strips(picture):
        high_bytes, low_bytes = np.asarray(picture.crop(box)), np.asarray(low.crop(box))
        equal = (high_bytes == key >> 8) & (low_bytes == key & 255)
        mask = equal[..., 0] & equal[..., 1] & equal[..., 2]
        picture.paste("white", box, Image.fromarray(mask))


def _turn_upright(picture: Image.Image, orientation: int) -> Image.Image:
    method = TRANSPOSES.get(orientation)
    return picture if method is None else picture.transpose(method)


def _flatten(picture: Image.Image, how: PicturePreprocess) -> Image.Image:
    mode = "L" if how.channels == 1 else "RGB"
    if picture.mode in ("I;16", "I", "F"):  # 16-bit greyscale: Pillow would clip, not scale
        levels = np.asarray(picture)
        eight_bit = np.clip(levels // 256, 0, 255).astype(np.uint8)  # as Pillow scales colours
        if how.alpha == "white" and KEY in picture.info:
            eight_bit[levels == picture.info[KEY]] = 255
        picture = Image.fromarray(eight_bit)
    if how.alpha == "white" and picture.has_transparency_data:
        picture = _on_white(picture.convert("RGBA"))
    return picture if picture.mode == mode else picture.convert(mode)


def _on_white(picture: Image.Image) -> Image.Image:
    """Put an RGBA picture on white, in strips between which other threads get the GIL."""
    for box in _strips(picture):
        strip = picture.crop(box)
        white = Image.new("RGBA", strip.size, "white")
        picture.paste(Image.alpha_composite(white, strip), box)
    return picture


def _strips(picture: Image.Image) -> Iterator[tuple[int, int, int, int]]:
    """Yield the boxes of strips of `STRIP_PIXELS`, or of single rows."""
    rows = max(1, STRIP_PIXELS // picture.width)
    for top in range(0, picture.height, rows):
        yield 0, top, picture.width, min(top + rows, picture.height)


def _border(picture: Image.Image) -> npt.NDArray[np.uint8]:
    """Copy only the pixels of the four sides, corners twice."""
    width, height = picture.size
    rows = [(0, top, width, top + 1) for top in (0, height - 1)]
    columns = [(left, 0, left + 1, height) for left in (0, width - 1)]
    sides = [np.asarray(picture.crop(box)) for box in (*rows, *columns)]
    return np.concatenate([side.reshape(-1, *side.shape[2:]) for side in sides])


def _must_invert(how: PicturePreprocess, border: npt.NDArray[np.uint8]) -> bool:
    if how.polarity == "auto":
        return float(border.mean()) > 127.5
    return how.polarity == "dark-on-light"
