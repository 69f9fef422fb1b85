"""Keeps only the first picture of a WebP file, and reads its size before any decoder does.

Pillow's decoder allocates the whole canvas when it opens a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from models.inputs.pictures import MAX_CHUNKS, MAX_EXIF_BYTES, PictureError, orientation_of

RIFF, WEBP = b"RIFF", b"WEBP"
HEAD = 12  # bytes before the first chunk
CHUNK_HEAD = 8  # bytes: kind, size
LOSSY, LOSSLESS, EXTENDED, ALPHA = b"VP8 ", b"VP8L", b"VP8X", b"ALPH"
ANIMATION, FRAME = b"ANIM", b"ANMF"
HAS_ALPHA, IS_ANIMATED = 0x10, 0x02  # flags of VP8X
EXTENDED_BYTES, ANIMATION_BYTES, FRAME_BYTES = 10, 6, 16
LOSSY_START = b"\x9d\x01\x2a"  # after three bytes; before width and height of 14 bits each
LOSSLESS_START = 0x2F


class WebP(NamedTuple):
    """The first picture of a file.

    Attributes:
        data: a file with that picture alone.
        orientation: how the camera was held, as EXIF numbers it; 1: upright.
        size: width, height.
    """

    data: bytes
    orientation: int
    size: tuple[int, int]


def is_webp(data: bytes) -> bool:
    """Whether a file begins as WebP does."""
    return data.startswith(RIFF) and data[8:HEAD] == WEBP


def first_picture(data: bytes) -> WebP:
    """Reduce a WebP file to its only, or first, picture.

    Raises:
        PictureError: if it is damaged, or has more parts than any encoder writes.
    """
    end = int.from_bytes(data[4:8], "little") + CHUNK_HEAD
    if end > len(data):
        raise PictureError("the picture is damaged: it ends before its pixels do")
    chunks = _chunks(memoryview(data)[:end], HEAD)  # what follows is no part of the file
    kind, body = next(chunks, (b"", memoryview(b"")))
    if kind in (LOSSY, LOSSLESS):
        return WebP(_file((kind, body)), 1, _size(kind, body))
    if kind != EXTENDED or len(body) < EXTENDED_BYTES:
        raise PictureError("the picture is damaged: it has no header before its pixels")
    width, height = (int.from_bytes(body[at : at + 3], "little") + 1 for at in (4, 7))
    head = bytes((body[0] & (HAS_ALPHA | IS_ANIMATED),)) + bytes(3) + bytes(body[4:EXTENDED_BYTES])
    if body[0] & IS_ANIMATED:
        parts = [(ANIMATION, memoryview(bytes(ANIMATION_BYTES))), (FRAME, _first_frame(chunks))]
        return WebP(_file((EXTENDED, head), *parts), 1, (width, height))
    chunks_by_kind: dict[bytes, memoryview] = {}
    for kind, body in chunks:
        chunks_by_kind.setdefault(kind, body)
    parts = _pixels(chunks_by_kind)
    exif = bytes(chunks_by_kind.get(b"EXIF", b"")[:MAX_EXIF_BYTES])
    orientation = orientation_of(exif, bytes(chunks_by_kind.get(b"XMP ", b"")[:MAX_EXIF_BYTES]))
    return WebP(_file((EXTENDED, head), *parts), orientation, (width, height))


def _first_frame(chunks: Iterator[tuple[bytes, memoryview]]) -> memoryview:
    body = next((body for kind, body in chunks if kind == FRAME), memoryview(b""))
    parts: dict[bytes, memoryview] = {}
    for kind, part in _chunks(body, FRAME_BYTES):
        parts.setdefault(kind, part)
    return memoryview(bytes(body[:FRAME_BYTES]) + _chunk_bytes(*_pixels(parts)))


def _pixels(chunks_by_kind: dict[bytes, memoryview]) -> list[tuple[bytes, memoryview]]:
    parts = [
        (kind, chunks_by_kind[kind]) for kind in (ALPHA, LOSSY, LOSSLESS) if kind in chunks_by_kind
    ]
    if not parts or parts[-1][0] == ALPHA:
        raise PictureError("the picture is damaged: it ends before its pixels do")
    return parts


def _size(kind: bytes, body: memoryview) -> tuple[int, int]:
    if kind == LOSSY and body[3:6] == LOSSY_START and len(body) >= 10:
        bits = int.from_bytes(body[6:10], "little")
        return bits & 0x3FFF, bits >> 16 & 0x3FFF
    if kind == LOSSLESS and len(body) >= 5 and body[0] == LOSSLESS_START:
        bits = int.from_bytes(body[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    raise PictureError("the picture is damaged: it has no header before its pixels")


def _chunks(data: memoryview, at: int) -> Iterator[tuple[bytes, memoryview]]:
    """Yield the chunks that begin at `at`.

    Raises:
        PictureError: if one is incomplete, or there are too many.
    """
    for _ in range(MAX_CHUNKS):
        begin = at + CHUNK_HEAD
        if begin > len(data):
            return
        size = int.from_bytes(data[at + 4 : begin], "little")
        if begin + size > len(data):
            raise PictureError("the picture is damaged: it ends before its pixels do")
        yield bytes(data[at : at + 4]), data[begin : begin + size]
        at = begin + size + size % 2
    raise PictureError(f"the WebP file has more than {MAX_CHUNKS} chunks; save it again")


def _file(*parts: tuple[bytes, memoryview | bytes]) -> bytes:
    body = WEBP + _chunk_bytes(*parts)
    return RIFF + len(body).to_bytes(4, "little") + body


def _chunk_bytes(*parts: tuple[bytes, memoryview | bytes]) -> bytes:
    chunks = (
        b"".join((kind, len(body).to_bytes(4, "little"), body, b"\0" * (len(body) % 2)))
        for kind, body in parts
    )
    return b"".join(chunks)
