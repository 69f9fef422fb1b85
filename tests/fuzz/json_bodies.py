"""JSON bodies for every codec, one item and many: the fast way and the thorough one agree."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator

import numpy as np
import orjson

from app.codecs.base import Codec
from app.types import Array
from tests.fuzz.codecs import CODECS, THOROUGH
from tests.fuzz.oracle import outcome
from tests.fuzz.target import Finding, Target
from tests.unit.models.pictures import grey, plus

JSON = "application/json"


def case(data: bytes) -> None:
    """The first byte names the codec, the second whether there are many; the rest is the body."""
    if len(data) < 2:
        return
    at, many, body = data[0] % len(CODECS), bool(data[1] & 1), data[2:]
    fast = outcome(CODECS[at], JSON, body, many=many)
    thorough = outcome(THOROUGH[at], JSON, body, many=many)
    if fast != thorough:
        raise Finding(f"fast: {fast}\nthorough: {thorough}")


def seeds() -> Iterator[bytes]:
    """Items nested, flat and by name, and a picture."""
    for at, codec in enumerate(CODECS):
        for item in _items(codec):
            one = orjson.dumps({"input": item}, option=orjson.OPT_SERIALIZE_NUMPY)
            two = orjson.dumps({"inputs": [item, item]}, option=orjson.OPT_SERIALIZE_NUMPY)
            yield bytes((at, 0)) + one
            yield bytes((at, 1)) + two


def _items(codec: Codec) -> Iterator[object]:
    arrays: dict[str, Array] = {}
    for spec in codec.manifest.inputs:
        shape = [2 if size == -1 else size for size in spec.item_shape]
        numbers = np.arange(int(np.prod(shape)), dtype=np.float64).reshape(shape)
        arrays[spec.name] = np.ascontiguousarray(numbers.astype(spec.dtype)).reshape(shape)
    nested = {name: array.tolist() for name, array in arrays.items()}
    yield nested
    if len(arrays) == 1:
        yield next(iter(nested.values()))
        yield next(iter(arrays.values())).ravel().tolist()
    if "image/png" in codec.media_types:
        yield base64.b64encode(grey(plus(8))).decode()


NUMBERS = (
    *(b"0", b"-0", b"-0.0", b"1e5", b"1E-400", b"1e999", b"-1e300", b"5e-324", b"65519.99", b"1.5"),
    *(b"128", b"-129", b"255", b"256", b"65520", b"16777217", b"3.4028235677973366e38"),
    *(b"9007199254740993", b"9223372036854775807", b"9223372036854775808", b"18446744073709551616"),
    *(b"NaN", b"Infinity", b"01", b"1.", b".5", b"+1", b"1e", b"0x1"),
)
TOKENS = (
    *(b"[", b"]", b"{", b"}", b",", b":", b'"', b"null", b"true", b"false", b"[]", b"{}", b'""'),
    *(b'"input"', b'"inputs"', b'"x"', b'"a"', b'"b"', b'"picture"', b"\\u0069", b"\\ud800"),
    *(
        b"\xef\xbb\xbf",
        b"\xed\xa0\x80",
        b"\0",
        b"\xff",
        b"[" * 64,
        b"]" * 64,
        b"data:image/png;base64,",
    ),
)
TARGET = Target(case, seeds, tuple(itertools.chain(NUMBERS, TOKENS)), max_bytes=2048)
