"""Pictures as the bytes of files, for tests."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

# Of an interlaced PNG's seven pictures: the first column and row, and how far it is to the next.
ADAM7 = (
    *((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4)),
    *((0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)),
)
Pixels = npt.NDArray[np.uint8]


def encoded(picture: Image.Image, form: str = "PNG", exif: bytes | None = None) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, form, **({} if exif is None else {"exif": exif}))
    return buffer.getvalue()


def grey(pixels: Pixels) -> bytes:
    """A PNG of grey levels [h, w]."""
    return encoded(Image.fromarray(pixels))


def plus(size: int = 12) -> Pixels:
    """A light plus sign on a dark ground, off centre, with a foot to mark its lower end."""
    pixels = np.zeros((size, size), np.uint8)
    pixels[2 : size - 3, size // 2] = 255
    pixels[size // 2, 3 : size - 2] = 200
    pixels[size - 3, 4] = 90
    return pixels


def noise(height: int, width: int, channels: int = 3) -> Pixels:
    rng = np.random.default_rng(5)
    return rng.integers(0, 256, (height, width, channels), dtype=np.uint8)


def claiming(width: int, height: int) -> bytes:
    """A PNG of a few dozen bytes whose header claims any size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b""))


def png(size: tuple[int, int], colour: int, depth: int, *, interlaced: bool = False) -> bytes:
    """A black PNG of any colour type and depth whose every row has the slowest filter, Paeth."""
    width, height = size
    bits = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour] * depth
    passes = ADAM7 if interlaced else ((0, 0, 1, 1),)
    rows = b""
    for left, top, across, down in passes:
        columns, lines = -((left - width) // across), -((top - height) // down)
        if columns > 0 and lines > 0:
            rows += (b"\x04" + bytes((columns * bits + 7) // 8)) * lines
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced)
    palette = chunk(b"PLTE", bytes(range(3))) if colour == 3 else b""
    pixels = chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + palette + pixels


def png_of(
    samples: npt.NDArray[np.int64],
    colour: int,
    depth: int,
    *,
    trns: bytes = b"",
    plte: bytes = b"",
    interlaced: bool = False,
) -> bytes:
    """A PNG of samples [h, w, channels], of any colour type and depth, without filters."""
    height, width = samples.shape[:2]
    rows = b""
    for left, top, across, down in ADAM7 if interlaced else ((0, 0, 1, 1),):
        part = samples[top::down, left::across]
        for row in part if part.size else ():
            bits = (row.reshape(-1, 1) >> np.arange(depth - 1, -1, -1)) & 1
            rows += b"\0" + np.packbits(bits.astype(np.uint8)).tobytes()
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced)
    made = [(b"IHDR", header), (b"PLTE", plte), (b"tRNS", trns), (b"IDAT", zlib.compress(rows))]
    chunks = (chunk(name, body) for name, body in made if body)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks) + chunk(b"IEND", b"")


def exif_data(order: str, *entries: tuple[int, int, int]) -> bytes:
    """EXIF data of (tag, type, value); types: 3 is SHORT, 4 is LONG, others have the value 0."""
    head = b"II*\0" if order == "<" else b"MM\0*"
    made = head + struct.pack(order + "IH", 8, len(entries))
    for tag, kind, value in entries:
        padded = struct.pack(
            order + {3: "Hxx", 4: "I"}.get(kind, "4x"), *[value] * (kind in (3, 4))
        )
        made += struct.pack(order + "HHI", tag, kind, 1) + padded
    return b"Exif\0\0" + made + bytes(4)


def jpeg(picture: Image.Image, **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", **options)
    return buffer.getvalue()


def webp(picture: Image.Image, **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "WEBP", **options)
    return buffer.getvalue()


def gif(picture: Image.Image, **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "GIF", **options)
    return buffer.getvalue()


def chunk(name: bytes, body: bytes) -> bytes:
    checksum = struct.pack(">I", zlib.crc32(name + body))
    return struct.pack(">I", len(body)) + name + body + checksum
