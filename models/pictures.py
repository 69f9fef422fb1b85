"""Keeps only the parts of a PNG or JPEG file that make its pixels; the rest is skipped unread.

Pillow reads comments, profiles, resources and anything between them one by one, in Python: a file
of sixteen megabytes of them keeps it busy for seconds, and a compressed one grows.
"""

from __future__ import annotations

import re

PNG = b"\x89PNG\r\n\x1a\n"
JPEG = b"\xff\xd8\xff"
# Header, palette, pixels, end; transparency; EXIF for the orientation.
PNG_CHUNKS = frozenset((b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS", b"eXIf"))
MAX_CHUNKS = 10_000  # encoders make one for each 8 KB or more
MAX_EXIF_BYTES = 64 << 10  # the maximum in a JPEG file
CHUNK_FRAME = 12  # bytes of a chunk besides its data: length, kind, checksum

MARKER = re.compile(rb"[^\xff]*+\xff++([^\x00\xff])")  # with bytes before it
JFIF, APP1, ADOBE = 0xE0, 0xE1, 0xEE
START_OF_SCAN, END_OF_IMAGE = 0xDA, 0xD9
WITHOUT_DATA = frozenset((0x01, *range(0xD0, 0xD9)))
KEPT_ONCE = (b"Exif\0\0", b"http://ns.adobe.com/xap/1.0/\0")  # both may contain the orientation
LEFT_OUT = frozenset((*range(0xE1, 0xEE), 0xEF, 0xFE))  # applications' data, comments
MAX_SEGMENTS = 2000
MAX_TABLE_BYTES = 64 << 10  # of segments that are neither metadata nor pixels; they take about 1 KB


class PictureError(ValueError):
    """The bytes are not a readable picture; the message says why, and is fit for the sender."""


def essential(data: bytes) -> bytes:
    """The file without the parts that its pixels do not need; other files unchanged.

    Raises:
        PictureError: if it is damaged, or has more parts than any encoder writes.
    """
    if data.startswith(PNG):
        return _essential_png(data)
    return _essential_jpeg(data) if data.startswith(JPEG) else data


def _essential_png(data: bytes) -> bytes:
    parts = [PNG]
    at, chunks = len(PNG), 0
    while at + CHUNK_FRAME <= len(data):
        kind = data[at + 4 : at + 8]
        end = at + CHUNK_FRAME + int.from_bytes(data[at : at + 4])
        chunks += 1
        if chunks > MAX_CHUNKS:
            raise PictureError(f"the PNG file has more than {MAX_CHUNKS} chunks; save it again")
        if kind in PNG_CHUNKS and (kind != b"eXIf" or end - at <= MAX_EXIF_BYTES):
            parts.append(data[at:end])
        if kind == b"IEND":
            break
        at = end
    return b"".join(parts)


def _essential_jpeg(data: bytes) -> bytes:
    parts = [data[:2]]
    at, segments, table_bytes = 2, 0, 0
    once = list(KEPT_ONCE)
    while found := MARKER.match(data, at):
        at, marker = found.end(), found[1][0]
        if marker in (START_OF_SCAN, END_OF_IMAGE):  # from here on it is for the decoder
            return b"".join((*parts, data[at - 2 :]))
        segments += 1
        if segments > MAX_SEGMENTS:
            raise PictureError(f"the JPEG file has more than {MAX_SEGMENTS} parts; save it again")
        if marker in WITHOUT_DATA:
            continue
        size = int.from_bytes(data[at : at + 2])
        segment, at = data[at : at + size], at + size
        if len(segment) < max(size, 2):
            break
        kind = next((each for each in once if segment.startswith(each, 2)), None)
        if marker == APP1 and kind is not None:
            once.remove(kind)
        elif marker in LEFT_OUT:
            continue
        else:
            table_bytes += size
        if table_bytes > MAX_TABLE_BYTES:
            raise PictureError("the JPEG file has too many tables; save it again")
        parts.append(b"\xff%c%b" % (marker, segment))
    raise PictureError("the JPEG file is damaged: it ends before its pixels")
