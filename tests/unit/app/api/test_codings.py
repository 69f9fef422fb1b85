"""Bodies in gzip and deflate: inflated within bounds, or refused with what is wrong."""

from __future__ import annotations

import gzip
import random
import tracemalloc
import zlib

import pytest

from app.api.codings import (
    FREE_BYTES,
    MAX_CODED_ON_LOOP_BYTES,
    MAX_MEMBERS,
    MAX_ON_LOOP_BYTES,
    Inflater,
    read_coding,
)
from app.errors import InvalidInput, PayloadTooLarge, UnsupportedContentCoding

BODY = bytes(range(256)) * 400
CODED = {
    b"gzip": gzip.compress(BODY),
    b"x-gzip": gzip.compress(BODY),
    b"deflate": zlib.compress(BODY),
}
LIMIT = len(BODY)


def inflated(coding: bytes, body: bytes, limit: int = LIMIT) -> bytes:
    """As the server does it."""
    inflater = Inflater(coding, body, limit)
    short = inflater.inflate_shortly()
    return inflater.inflate() if short is None else short


@pytest.mark.parametrize("header", [b"", b"identity", b" Identity "])
def test_no_coding(header: bytes) -> None:
    assert read_coding(header) is None


@pytest.mark.parametrize("header", [b"br", b"gzip, deflate", b"zstd", b"gzip;q=1", b"gzip," * 99])
def test_other_codings_are_refused(header: bytes) -> None:
    with pytest.raises(UnsupportedContentCoding, match="gzip, deflate") as caught:
        read_coding(header)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("coding", CODED)
@pytest.mark.parametrize(
    "size", [0, 1, LIMIT, MAX_ON_LOOP_BYTES, MAX_ON_LOOP_BYTES + 1, FREE_BYTES]
)
def test_decoding_restores_the_body(coding: bytes, size: int) -> None:
    assert read_coding(coding.upper()) == coding
    body = random.Random(size).randbytes(size // 2).ljust(size)
    coded = zlib.compress(body) if coding == b"deflate" else gzip.compress(body)
    assert inflated(coding, coded, size) == body


def test_only_short_bodies_are_inflated_immediately() -> None:
    long_coded = gzip.compress(random.Random(1).randbytes(MAX_CODED_ON_LOOP_BYTES))
    assert Inflater(b"gzip", long_coded, FREE_BYTES).inflate_shortly() is None
    long_plain = gzip.compress(bytes(MAX_ON_LOOP_BYTES + 1))
    assert Inflater(b"gzip", long_plain, FREE_BYTES).inflate_shortly() is None
    empty_blocks = gzip.compress(b"")[:10] + b"\0\0\0\xff\xff" * MAX_CODED_ON_LOOP_BYTES
    assert Inflater(b"gzip", empty_blocks, FREE_BYTES).inflate_shortly() is None


def test_a_gzip_file_may_have_several_members() -> None:
    members = [gzip.compress(BODY[at : at + 999]) for at in range(0, LIMIT, 999)]
    assert inflated(b"gzip", b"".join(members)) == BODY
    with pytest.raises(InvalidInput, match="extra bytes"):
        inflated(b"gzip", gzip.compress(b"") * (MAX_MEMBERS + 1))


@pytest.mark.parametrize("coding", CODED)
def test_one_byte_too_many(coding: bytes) -> None:
    with pytest.raises(PayloadTooLarge, match="without Content-Encoding, or split it"):
        inflated(coding, CODED[coding], LIMIT - 1)


def test_small_input_cannot_inflate_beyond_its_limit() -> None:
    body = bytes(FREE_BYTES + 1)
    with pytest.raises(PayloadTooLarge, match=f"more than {FREE_BYTES} bytes"):
        inflated(b"gzip", gzip.compress(body), 16 * FREE_BYTES)


def test_bomb_uses_no_more_memory_than_the_limit() -> None:
    bomb = gzip.compress(bytes(200 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(PayloadTooLarge):
            inflated(b"gzip", bomb, 1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("coding", CODED)
@pytest.mark.parametrize("plain", [BODY, bytes(300_000)], ids=["at once", "in two steps"])
def test_damage(coding: bytes, plain: bytes) -> None:
    whole = zlib.compress(plain) if coding == b"deflate" else gzip.compress(plain)
    damaged = {
        "cut off": (whole[:-1], whole[: len(whole) // 2], whole[:3], b""),
        "extra bytes|cut off|not valid": (whole + b"a",),  # in gzip another member may begin
        "not valid": (whole[:-1] + bytes([whole[-1] ^ 1]), b"{}" + whole, plain),
    }
    for message, bodies in damaged.items():
        for body in bodies:
            with pytest.raises(InvalidInput, match=message):
                inflated(coding, body, len(plain))
