"""Reads the headers of WAV and FLAC files, and keeps only what their samples need.

libsndfile reads many more formats, encodings and kinds of metadata; none of that gets to it.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

RIFF, WAVE, FLAC = b"RIFF", b"WAVE", b"fLaC"
CHUNK_HEAD = 8  # bytes: kind, size
MAX_PARTS = 1000  # chunks of a WAV file, or blocks of metadata of a FLAC file; most have a few
FORMAT = struct.Struct("<HHIIHH")  # encoding, channels, rate, bytes per second, of a frame, bits
EXTENSIBLE = 0xFFFE  # the encoding is then part of an identifier at this offset
SUBFORMAT_AT = 24
# The encodings of WAV that are read, and bits of a sample: integers, floats, A-law, mu-law.
ENCODINGS = {1: (8, 16, 24, 32), 3: (32, 64), 6: (8,), 7: (8,)}
FLOATS = 3
# A size as large as this is unknown: the writer could not go back to the header. ffmpeg writes
# 0xFFFFFFFF, arecord 0x80000000, sox 0x7FFFF000; a sound that is decoded has far fewer bytes.
UNKNOWN_BYTES = 0x7FFF0000
STREAMINFO, STREAMINFO_BYTES = 0, 34
LAST_BLOCK = 0x80


class SoundError(ValueError):
    """The bytes are not a readable sound; clients may see the message, which says why."""


class Sound(NamedTuple):
    """A sound whose header was read.

    Attributes:
        data: the file without the parts that its samples do not need.
        rate: frames per second; at least 1.
        channels: samples of a frame; at least 1.
        frames: how many the header says; of a WAV file, how many there are.
        floats: whether the file has floats, which may be NaN or infinite.
    """

    data: bytes
    rate: int
    channels: int
    frames: int
    floats: bool = False


def read_header(data: bytes) -> Sound:
    """Read the header of a WAV or FLAC file.

    Raises:
        SoundError: if it is neither, is damaged or cut off, or has an encoding that is not read.
    """
    if data.startswith(RIFF) and data[8:12] == WAVE:
        return _wav(data)
    if data.startswith(FLAC):
        return _flac(data)
    raise SoundError("neither a WAV nor a FLAC file")


def _wav(data: bytes) -> Sound:
    form = b""
    at = len(RIFF) + 4 + len(WAVE)
    for _ in range(MAX_PARTS):
        kind, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + CHUNK_HEAD], "little")
        begin = at + CHUNK_HEAD
        if len(data) < begin:
            raise SoundError("the WAV file is damaged: it ends before its samples")
        if kind == b"fmt ":
            form = data[begin : begin + size]
        elif kind == b"data":
            return _samples(form, data, begin, size)
        at = begin + size + size % 2  # chunks begin at even offsets
    raise SoundError(f"the WAV file has more than {MAX_PARTS} chunks; save it again")


def _samples(form: bytes, data: bytes, begin: int, size: int) -> Sound:
    """Return the samples behind a header of our own."""
    if len(form) < FORMAT.size:
        raise SoundError("the WAV file is damaged: it has no whole format before its samples")
    encoding, channels, rate, _, frame_bytes, bits = FORMAT.unpack_from(form)
    if encoding == EXTENSIBLE:
        encoding = int.from_bytes(form[SUBFORMAT_AT : SUBFORMAT_AT + 2], "little")
    if bits not in ENCODINGS.get(encoding, ()):
        raise SoundError(
            f"the WAV file has samples of encoding {encoding:#06x} with {bits} bits; save it as "
            "PCM of 8, 16, 24 or 32 bits, or as floats"
        )
    if not rate or not channels or frame_bytes != channels * bits // 8:
        raise SoundError("the WAV file is damaged: its format contradicts itself")
    bytes_left = len(data) - begin
    if size == 0 and not _is_empty(data, begin):
        size = bytes_left
    if size >= UNKNOWN_BYTES:
        size = min(size, bytes_left)
    if size > bytes_left:
        raise SoundError(
            f"the WAV file is cut off: it says {size} bytes of samples, and has {bytes_left}"
        )
    frames = size // frame_bytes
    size = frames * frame_bytes
    head = FORMAT.pack(encoding, channels, rate, rate * frame_bytes & 0xFFFFFFFF, frame_bytes, bits)
    parts = (
        *(RIFF, struct.pack("<I", 4 + CHUNK_HEAD + len(head) + CHUNK_HEAD + size), WAVE),
        *(b"fmt ", struct.pack("<I", len(head)), head),
        *(b"data", struct.pack("<I", size), memoryview(data)[begin : begin + size]),
    )
    return Sound(b"".join(parts), rate, channels, frames, encoding == FLOATS)


def _is_empty(data: bytes, begin: int) -> bool:
    """Whether samples of 0 bytes are none, or of unknown size: that of the file shows it."""
    size = int.from_bytes(data[len(RIFF) : len(RIFF) + 4], "little")
    return begin < size + CHUNK_HEAD and size < UNKNOWN_BYTES


def _flac(data: bytes) -> Sound:
    at, info = len(FLAC), b""
    for _ in range(MAX_PARTS):
        head, size = data[at : at + 1], int.from_bytes(data[at + 1 : at + 4])
        block, at = data[at + 4 : at + 4 + size], at + 4 + size
        if not head or len(block) < size:
            raise SoundError("the FLAC file is damaged: it ends before its samples")
        if not info:
            if head[0] & ~LAST_BLOCK != STREAMINFO or size != STREAMINFO_BYTES:
                raise SoundError("the FLAC file is damaged: it must begin with its format")
            info = block
        if head[0] & LAST_BLOCK:
            return _frames(info, memoryview(data)[at:])
    raise SoundError(f"the FLAC file has more than {MAX_PARTS} blocks of metadata; save it again")


def _frames(info: bytes, rest: memoryview) -> Sound:
    fields = int.from_bytes(info[10:18])  # rate: 20 bits, channels: 3, bits: 5, frames: 36
    rate, channels, frames = fields >> 44, (fields >> 41 & 7) + 1, fields & (1 << 36) - 1
    if not rate:
        raise SoundError("the FLAC file is damaged: it has 0 samples per second")
    if not frames and rest:
        raise SoundError(
            "the FLAC file does not say how long it is, as if written to a pipe; encode it to a "
            "file"
        )
    head = bytes((LAST_BLOCK | STREAMINFO,)) + STREAMINFO_BYTES.to_bytes(3)
    return Sound(b"".join((FLAC, head, info, rest)), rate, channels, frames)
