"""Bodies of floats: what machine code reads, orjson and numpy read too, to the last bit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import orjson

from app.api.payloads import read_items
from app.codecs.base import JSON
from app.codecs.tensor import TensorCodec
from app.errors import TorchlaneError
from app.types import Array, Item
from models.tensors import Dtype
from tests.fuzz.json_bodies import NUMBERS, TOKENS
from tests.fuzz.target import Finding, Target
from tests.native import read_floats
from tests.unit.models.manifests import make_manifest, spec

MAX_ITEMS = 3


class Thorough(TensorCodec):
    """Takes nothing on the fast way."""

    def decode_numbers(self, key: str, body: bytes, *, max_items: int | None) -> list[Item] | None:
        return None


DTYPES: tuple[Dtype, ...] = ("float32", "float64")
SHAPES: tuple[tuple[int, ...], ...] = ((2, 3), (4,), (), (1, 2, 2), (1,))
SPECS = tuple(spec("x", dtype, (-1, *shape)) for shape in SHAPES for dtype in DTYPES)
READ_FLOATS = read_floats()
CODECS = tuple(Thorough(make_manifest([each])) for each in SPECS)


def case(data: bytes) -> None:
    """The first byte names the input, the second whether there are many; the rest is the body."""
    if len(data) < 2:
        return
    at, many, body = data[0] % len(SPECS), bool(data[1] & 1), data[2:]
    key, most = ("inputs", MAX_ITEMS) if many else ("input", None)
    of = SPECS[at]
    got = READ_FLOATS(body, key, of.name, of.item_shape, most, of.dtype == "float64")
    if got is None:
        return
    try:
        items = read_items(CODECS[at], JSON, body, many=many, max_items=MAX_ITEMS)
    except TorchlaneError as error:
        raise Finding(f"only machine code reads {np.frombuffer(got, of.dtype)}") from error
    right = b"".join(item.arrays["x"].tobytes() for item in items)
    if got != right:
        raise Finding(f"machine code: {got!r}\nother: {right!r}")


def seeds() -> Iterator[bytes]:
    """Items nested, flat and by name; numbers of all kinds."""
    for at, of in enumerate(SPECS):
        numbers: Array = np.arange(np.prod(of.item_shape, dtype=int)) / 7 - 0.25
        flat, nested = numbers.tolist(), numbers.reshape(of.item_shape).tolist()
        for item in (nested, flat, {"x": nested}):
            yield bytes((at, 0)) + orjson.dumps({"input": item})
        for item in (nested, flat):
            yield bytes((at, 1)) + orjson.dumps({"inputs": [item, item]})
    for number in NUMBERS:
        yield b"\x08\x00" + b'{"input": [' + number + b"]}"
        yield b"\x09\x00" + b'{"input": [' + number + b"]}"


TARGET = Target(case, seeds, (*NUMBERS, *TOKENS), max_bytes=512)
