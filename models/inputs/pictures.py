"""Keeps only the parts of a PNG or JPEG file that its pixels need, and skips the rest unread.

Pillow reads comments, profiles, resources and anything between them one by one, in Python: sixteen
megabytes of them keep it busy for seconds, and compressed ones grow.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from typing import Literal, NamedTuple

PNG = b"\x89PNG\r\n\x1a\n"
JPEG = b"\xff\xd8\xff"
# Header, palette, pixels, end; transparency. EXIF is read only for the orientation.
PNG_CHUNKS = frozenset((b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS"))
MAX_CHUNKS = 10_000  # encoders write one per 8 KB or more
MAX_EXIF_BYTES = 64 << 10  # the maximum in a JPEG file
MAX_EXIF_ENTRIES = 200  # cameras write about 15, sorted by tag; few come before the orientation's
EXIF_ENTRY = 12  # bytes: tag, type, count, value
ORIENTATION = 0x0112  # a tag
BYTE_ORDERS: dict[bytes, Literal["little", "big"]] = {b"II": "little", b"MM": "big"}
INTEGER_BYTES = {3: 2, 4: 4}  # of the types SHORT and LONG
XMP_ORIENTATION = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')
CHUNK_FRAME = 12  # bytes of a chunk besides its data: length, kind, checksum
# The seven pictures of an interlaced PNG: first column and row, and the steps to the next ones.
INTERLACE_PASSES = (
    *((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4)),
    *((0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)),
)
PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
INFLATED_AT_ONCE = 64 << 10  # bytes, compressed or not

MARKER = re.compile(rb"[^\xff]*+\xff++([^\x00\xff])")  # with bytes before it
MARKER_BEHIND_SCAN = re.compile(rb"\xff([^\x00\xd0-\xd7\xff])")  # restarts belong to the scan
JFIF, APP1, ADOBE = 0xE0, 0xE1, 0xEE
START_OF_SCAN, END_OF_IMAGE = 0xDA, 0xD9
BASELINE, PROGRESSIVE = 0xC0, 0xC2  # headers of frames; between them: sequential
OTHER_FRAMES = frozenset((0xC3, *range(0xC5, 0xCC), 0xCD, 0xCE, 0xCF))
# Eight bytes of ones, which begin no Huffman code and no marker: libjpeg reads that far ahead.
ONES = b"\xff\0" * 8
WITHOUT_DATA = frozenset((0x01, *range(0xD0, 0xD9)))
EXIF, XMP = b"Exif\0\0", b"http://ns.adobe.com/xap/1.0/\0"  # either may contain the orientation
SKIPPED_SEGMENTS = frozenset((*range(0xE1, 0xEE), 0xEF, 0xFE))  # application data, comments
MAX_SEGMENTS = 2000
FRAME_HEAD = 9  # bytes of a frame's marker, size and number of components, before these
MAX_TABLE_BYTES = 64 << 10  # of segments that are neither metadata nor pixels; they take about 1 KB


class PictureError(ValueError):
    """The bytes are not a readable picture; clients may see the message, which says why."""


class Essential(NamedTuple):
    """The essential content of a file.

    Attributes:
        data: the file without the parts that its pixels do not need.
        orientation: how the camera was held, as EXIF numbers it; 1: upright.
    """

    data: bytes
    orientation: int


def essential(data: bytes) -> Essential:
    """Reduce a PNG or JPEG file to its essential parts; leave others unchanged.

    libjpeg fills a scan that ends early with grey and only warns. If a JPEG file has a single scan,
    its end marker is removed, so that Pillow detects a truncated file.

    Raises:
        PictureError: if it is damaged, or has more parts than any encoder writes.
    """
    if data.startswith(PNG):
        return _essential_png(data)
    return _essential_jpeg(data) if data.startswith(JPEG) else Essential(data, 1)


def orientation_of(exif: bytes, xmp: bytes) -> int:
    """Read the orientation from EXIF, or else XMP; Pillow would parse every entry, in Python.

    EXIF data that is not readable does not count: programs that remove it leave zeros or a part.
    """
    exif = exif.removeprefix(EXIF).removeprefix(EXIF)  # some programs write it twice
    order = BYTE_ORDERS.get(exif[:2])
    if order is not None:
        at = int.from_bytes(exif[4:8], order)
        entries = min(int.from_bytes(exif[at : at + 2], order), MAX_EXIF_ENTRIES)
        end = min(at + 2 + entries * EXIF_ENTRY, len(exif) - EXIF_ENTRY + 1)
        for begin in range(at + 2, end, EXIF_ENTRY):
            if int.from_bytes(exif[begin : begin + 2], order) == ORIENTATION:
                size = INTEGER_BYTES.get(int.from_bytes(exif[begin + 2 : begin + 4], order), 0)
                return int.from_bytes(exif[begin + 8 : begin + 8 + size], order)
    match = XMP_ORIENTATION.search(xmp)
    return int(match[1]) if match else 1


def _essential_png(data: bytes) -> Essential:
    parts, exif = [PNG], b""
    at, chunks = len(PNG), 0
    while at + CHUNK_FRAME <= len(data):
        kind = data[at + 4 : at + 8]
        end = at + CHUNK_FRAME + int.from_bytes(data[at : at + 4])
        chunks += 1
        if chunks > MAX_CHUNKS:
            raise PictureError(f"the PNG file has more than {MAX_CHUNKS} chunks; save it again")
        if kind == b"eXIf" and end - at <= MAX_EXIF_BYTES:
            chunk = data[at + 4 : end]
            is_whole = zlib.crc32(chunk[:-4]) == int.from_bytes(chunk[-4:])
            exif = chunk[4:-4] if is_whole else b""
        elif kind in PNG_CHUNKS:
            _check_chunk(kind, memoryview(data)[at:end], end - at, first=len(parts) == 1)
            parts.append(data[at:end])
        if kind == b"IEND":
            break
        at = end
    return Essential(b"".join(parts), orientation_of(exif, b""))


def _check_chunk(kind: bytes, chunk: memoryview, size: int, *, first: bool) -> None:
    """Check what Pillow does not check.

    Raises:
        PictureError: if it is incomplete or damaged, or the header is not first, or repeated.
    """
    if len(chunk) < size:
        raise PictureError("the picture is damaged: it ends before its pixels do")
    if first != (kind == b"IHDR"):
        raise PictureError(
            "the picture is damaged: it must begin with its header, and have only one"
        )
    if zlib.crc32(chunk[4:-4]) != int.from_bytes(chunk[-4:]):
        raise PictureError(f"the picture is damaged: wrong checksum of {kind.decode()}")


def check_rows(data: bytes) -> None:
    """Check that a PNG file has all rows of its header; takes as long as inflating it.

    Pillow leaves missing rows black. Other files are not checked.

    Args:
        data: what `essential` returned.

    Raises:
        PictureError: if there are fewer.
    """
    if not data.startswith(PNG):
        return
    missing = _row_bytes(data)
    inflater = zlib.decompressobj()
    for kind, begin, end in _chunks(data):
        if missing <= 0:
            return
        if kind == b"IDAT":
            for offset in range(begin, end, INFLATED_AT_ONCE):
                piece = data[offset : min(offset + INFLATED_AT_ONCE, end)]
                missing -= _inflated_size(inflater, piece, missing)
    if missing > 0:
        raise PictureError("the picture is damaged: it has fewer rows than its header says")


def transparent_grey(data: bytes) -> int:
    """Return the transparent level of a greyscale PNG file of up to 8 bits, scaled to 8 bits.

    Args:
        data: what `essential` returned; has a transparent level.
    """
    most = (1 << data[24]) - 1  # bits of the header's depth; the higher ones do not count
    keys = (data[begin:end] for kind, begin, end in _chunks(data) if kind == b"tRNS")
    return (int.from_bytes(next(keys)[:2]) & most) * 255 // most


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield the chunks of a PNG file, with the offsets of their data and of its end."""
    at = len(PNG)
    while at + CHUNK_FRAME <= len(data):
        end = at + CHUNK_FRAME + int.from_bytes(data[at : at + 4])
        yield data[at + 4 : at + 8], at + 8, end - 4
        at = end


def _inflated_size(inflater: zlib._Decompress, piece: bytes, enough: int) -> int:
    """Return the inflated size of a piece of compressed data, up to about `enough`."""
    total = 0
    try:
        while piece and total < enough and not inflater.eof:
            total += len(inflater.decompress(piece, INFLATED_AT_ONCE))
            piece = inflater.unconsumed_tail
    except zlib.error as error:
        raise PictureError(f"the picture is damaged: {error}") from error
    return total


def _row_bytes(data: bytes) -> int:
    """Return the bytes of all rows of a PNG file, inflated."""
    width, height = int.from_bytes(data[16:20]), int.from_bytes(data[20:24])
    bits = data[24] * PNG_CHANNELS.get(data[25], 0)
    total = 0
    for left, top, across, down in INTERLACE_PASSES if data[28] else ((0, 0, 1, 1),):
        columns, rows = -((left - width) // across), -((top - height) // down)
        if columns > 0 and rows > 0:
            total += rows * (1 + (columns * bits + 7) // 8)
    return total


def _essential_jpeg(data: bytes) -> Essential:
    parts, exif, xmp = [data[:2]], b"", b""
    at, segments, table_bytes = 2, 0, 0
    frame = b""
    while match := MARKER.match(data, at):
        at, marker = match.end(), match[1][0]
        if marker == END_OF_IMAGE:
            break
        if marker == START_OF_SCAN:  # the rest is for the decoder
            content = b"".join((*parts, _scans(data, at, frame)))
            return Essential(content, orientation_of(exif, xmp))
        segments += 1
        if segments > MAX_SEGMENTS:
            raise PictureError(f"the JPEG file has more than {MAX_SEGMENTS} parts; save it again")
        if marker in WITHOUT_DATA:
            continue
        if marker in OTHER_FRAMES:
            raise PictureError(
                "the JPEG file is arithmetic-coded, lossless or hierarchical; save it as baseline "
                "or progressive"
            )
        # Some programs zero the size with the content: the next marker is then looked for.
        size = max(int.from_bytes(data[at : at + 2]), 2 if marker in SKIPPED_SEGMENTS else 0)
        segment, at = data[at : at + size], at + size
        if len(segment) < max(size, 2):
            break
        if BASELINE <= marker <= PROGRESSIVE:
            frame = bytes((marker,)) + segment
        if marker == APP1 and segment.startswith(EXIF, 2):
            exif = exif or segment[2:]
        elif marker == APP1 and segment.startswith(XMP, 2):
            xmp = xmp or segment[2:]
        if marker in SKIPPED_SEGMENTS:
            continue
        table_bytes += size
        if table_bytes > MAX_TABLE_BYTES:
            raise PictureError("the JPEG file has too many tables; save it again")
        parts.append(b"\xff%c%b" % (marker, segment))
    raise PictureError("the JPEG file is damaged: it ends before its pixels")


def _scans(data: bytes, at: int, frame: bytes) -> bytes:
    """Return the scans of a JPEG file, without the end marker if there is one scan.

    Args:
        data: the file.
        at: the offset after the marker of the first scan.
        frame: the marker of the frame's header and its segment; empty: there is none.

    Raises:
        PictureError: if a needed scan, or bytes, are missing.
    """
    if len(frame) <= FRAME_HEAD:
        raise PictureError("the picture is damaged: it has no header before its pixels")
    height, width = int.from_bytes(frame[4:6]), int.from_bytes(frame[6:8])
    is_progressive = frame[0] == PROGRESSIVE
    missing = set(frame[FRAME_HEAD::3])  # components not yet in any scan
    start, scans, begin_bytes, is_refined, is_single = at - 2, 0, 0, False, False
    for marker, end, segment in _parts(data, start):
        if not missing and not begin_bytes:
            begin_bytes = end - start  # bytes of the scans that begin all components
        is_single = scans == 1 and begin_bytes > 0 and not is_progressive
        if is_single or marker == END_OF_IMAGE:
            break
        if marker == START_OF_SCAN:
            is_refined = begin_bytes > 0
            scans += 1
            behind = 3 + 2 * int.from_bytes(segment[2:3])
            first, step = segment[behind : behind + 1], segment[behind + 2 : behind + 3]
            if not is_progressive or (first == b"\0" and step < b"\x10"):  # not a later step
                missing.difference_update(segment[3:behind:2])
    if not begin_bytes or (is_progressive and not is_refined):
        raise PictureError("the picture is damaged: it ends before its pixels do")
    if 8 * begin_bytes < -(-width // 8) * -(-height // 8):  # at least one bit for each block
        raise PictureError("the picture is damaged: it has too few bytes for its size")
    return data[start:end] + ONES if is_single else data[start : end + 2]


def _parts(data: bytes, at: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield the markers after a JPEG file's header, with their offsets and segments."""
    for _ in range(MAX_SEGMENTS):
        match = MARKER_BEHIND_SCAN.search(data, at)
        if match is None:
            yield END_OF_IMAGE, len(data), b""
            return
        marker, at = match[1][0], match.end()
        size = 0 if marker in WITHOUT_DATA else int.from_bytes(data[at : at + 2])
        yield marker, match.start(), data[at : at + size]
        at += size
    raise PictureError(f"the JPEG file has more than {MAX_SEGMENTS} parts; save it again")
