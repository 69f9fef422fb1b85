"""Pictures as the bytes of files, for tests."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import numpy.typing as npt
from PIL import Image

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
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(b""))


def _chunk(name: bytes, body: bytes) -> bytes:
    checksum = struct.pack(">I", zlib.crc32(name + body))
    return struct.pack(">I", len(body)) + name + body + checksum
