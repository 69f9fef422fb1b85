"""Bodies in gzip and deflate: inflated within bounds, or refused with what is wrong."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib

import pytest

from app.api.codings import Inflater, read_coding
from app.errors import InvalidInput, PayloadTooLarge, UnsupportedContentCoding

BODY = bytes(range(256)) * 400
CODED = {
    b"gzip": gzip.compress(BODY),
    b"x-gzip": gzip.compress(BODY),
    b"deflate": zlib.compress(BODY),
}
LIMIT = len(BODY)


def in_two_steps(inflater: Inflater, most: int | None) -> bytes | None:
    first = inflater.inflate(most)
    return inflater.inflate() if first is None else first


@pytest.mark.parametrize("header", [b"", b"identity", b" Identity "])
def test_no_coding(header: bytes) -> None:
    assert read_coding(header) is None


@pytest.mark.parametrize("header", [b"br", b"gzip, deflate", b"zstd", b"gzip;q=1", b"gzip," * 99])
def test_other_codings_are_refused(header: bytes) -> None:
    with pytest.raises(UnsupportedContentCoding, match="gzip, deflate") as caught:
        read_coding(header)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("coding", CODED)
@pytest.mark.parametrize("most", [None, 1, 999, LIMIT - 1, LIMIT, LIMIT + 1, LIMIT + 2])
def test_what_went_in_comes_out(coding: bytes, most: int | None) -> None:
    """Whatever the first step may take, the second finishes."""
    assert read_coding(coding.upper()) == coding
    assert in_two_steps(Inflater(coding, CODED[coding], LIMIT), most) == BODY
    first = Inflater(coding, CODED[coding], LIMIT).inflate(most)
    assert first is None or most is None or most >= LIMIT


def test_nothing() -> None:
    assert Inflater(b"gzip", gzip.compress(b""), 10).inflate() == b""


@pytest.mark.parametrize("coding", CODED)
def test_one_byte_too_many(coding: bytes) -> None:
    with pytest.raises(PayloadTooLarge):
        Inflater(coding, CODED[coding], LIMIT - 1).inflate()


def test_a_bomb_takes_no_more_memory_than_its_limit() -> None:
    bomb = gzip.compress(bytes(200 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(PayloadTooLarge):
            Inflater(b"gzip", bomb, 1 << 20).inflate()
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("coding", CODED)
@pytest.mark.parametrize("first", [None, 10, LIMIT])
def test_damage(coding: bytes, first: int | None) -> None:
    whole = CODED[coding]
    damaged = {
        "cut off": (whole[:-1], whole[: len(whole) // 2], whole[:3], b""),
        "goes on behind": (whole + b"a", whole + whole),
        "not valid": (b"{}" + whole, whole[:-1] + bytes([whole[-1] ^ 1]), BODY),
    }
    for message, bodies in damaged.items():
        for body in bodies:
            with pytest.raises(InvalidInput, match=message):
                in_two_steps(Inflater(coding, body, LIMIT), first)
