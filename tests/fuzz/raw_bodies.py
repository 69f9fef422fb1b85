"""Raw bodies: little-endian bytes and .npy files, for every codec that takes them, and some not."""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np

from app.api.payloads import read_items
from app.codecs.base import NPY, OCTET_STREAM
from app.errors import TorchlaneError
from app.types import Array
from tests.fuzz.codecs import CODECS
from tests.fuzz.oracle import MAX_ITEMS, outcome
from tests.fuzz.target import Finding, Target

MEDIA_TYPES = (OCTET_STREAM, NPY)


def case(data: bytes) -> None:
    """First the codec, then media type and whether there are many; the rest is the body."""
    if len(data) < 2:
        return
    codec, many, body = CODECS[data[0] % len(CODECS)], bool(data[1] & 1), data[2:]
    media_type = MEDIA_TYPES[data[1] >> 1 & 1]
    got = outcome(codec, media_type, body, many=many)
    try:
        items = read_items(codec, media_type, body, many=many, max_items=MAX_ITEMS)
    except TorchlaneError:
        return
    stacked = np.stack([item.arrays[codec.manifest.inputs[0].name] for item in items])
    for other in codec.media_types:  # what was read, written and read again, is the same
        if other in MEDIA_TYPES:
            again = (
                octets(stacked) if other == OCTET_STREAM else npy(stacked if many else stacked[0])
            )
            if outcome(codec, other, again, many=many) != got:
                raise Finding(f"{media_type} and {other} differ: {stacked}")


def seeds() -> Iterator[bytes]:
    """One item and two, as bytes and as files of several kinds."""
    for at, codec in enumerate(CODECS):
        spec = codec.manifest.inputs[0]
        shape = [2 if size == -1 else size for size in spec.item_shape]
        two = np.ones((2, *shape), spec.dtype)
        yield bytes((at, 0)) + octets(two[0])
        yield bytes((at, 1)) + octets(two)
        yield bytes((at, 2)) + npy(two[0])
        for array in (two, np.asfortranarray(two), two.astype(">f8"), two.astype(">i4")):
            yield bytes((at, 3)) + npy(array)
        yield bytes((at, 3)) + npy(two, (2, 0))


def octets(array: Array) -> bytes:
    """Little-endian and row-major."""
    return array.astype(array.dtype.newbyteorder("<")).tobytes()


def npy(array: Array, version: tuple[int, int] | None = None) -> bytes:
    """As numpy.save writes it."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(array), version)
    return buffer.getvalue()


WORDS = (
    *(b"\x93NUMPY\x01\x00", b"\x93NUMPY\x02\x00", b"\x93NUMPY\x03\x00", b"'descr': ", b"'shape': "),
    *(b"'fortran_order': ", b"True", b"False", b"(", b")", b"(2, 3)", b"(1, 2, 3)", b"()", b"(0,)"),
    *(b"'<f4'", b"'>f8'", b"'|b1'", b"'<i8'", b"'|O'", b"'<M8[s]'", b"'<c8'", b"'|S4'", b"'<no'"),
    *(b"'|a4'", b"'|V4'", b"'<U1'", b"'<m8'", b"'<f2'", b"'<i4'", b"'<u8'", b"10L"),
    *(
        b"[('a', '<f4')]",
        b"-1",
        b"999999999999",
        b"(4000000000,)",
        b"None",
        b"{",
        b"}",
        b"\n",
        b" ",
    ),
    *(
        b"\x00\x00\xc0\x7f",
        b"\x00\x00\x80\x7f",
        b"\x00\x00\x00\x80",
        b"\x00\x7c",
        b"\xff\xff\xff\xff",
    ),
)
TARGET = Target(case, seeds, WORDS, max_bytes=1024)
