"""Infer requests of the Open Inference Protocol: JSON, and binary tensors behind it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import orjson

from app.api.oip import fast_json
from app.api.oip.infer import parse_body
from app.api.oip.requests import InferRequest, read_request
from app.api.oip.tensors import items_of
from app.codecs.base import Budget, Codec
from app.codecs.datatypes import DATATYPES
from app.errors import TorchlaneError
from app.types import Array
from tests.fuzz.codecs import CODECS
from tests.fuzz.oracle import KEYS, MAX_ITEMS, Outcome, check_items, check_refusal
from tests.fuzz.target import Finding, Target
from tests.native import read_floats

READ_FLOATS = read_floats()
ALL = 0xFFFF  # as the length of the JSON: there is no header


def case(data: bytes) -> None:
    """The first byte names the codec, two more the length of the JSON; the rest is the body."""
    if len(data) < 3:
        return
    codec, size, body = CODECS[data[0] % len(CODECS)], int.from_bytes(data[1:3]), data[3:]
    json_bytes = None if size == ALL else size
    slow = outcome(codec, body, json_bytes)
    if json_bytes in (None, len(body)) and (document := fast_json.load(body, READ_FLOATS)):
        fast = judged(codec, lambda: read_request(document, memoryview(b"")))
        if fast != slow:
            raise Finding(f"fast: {fast}\nslow: {slow}")


def outcome(codec: Codec, body: bytes, json_bytes: int | None) -> Outcome:
    """Read a body, and judge what comes of it."""
    return judged(codec, lambda: parse_body(codec, body, json_bytes, MAX_ITEMS, Budget()))


def judged(codec: Codec, read: Callable[[], InferRequest]) -> Outcome:
    """Judge what comes of a request."""
    try:
        request = read()
        items = items_of(codec, request.inputs, MAX_ITEMS, Budget())
    except TorchlaneError as error:
        check_refusal(error)
        return type(error), str(error), error.details
    if request.timeout_s <= 0 or math.isnan(request.timeout_s):
        raise Finding(f"a timeout of {request.timeout_s} s")
    check_items(codec.manifest.inputs, items, many=True)
    return request.outputs, request.id, request.binary, *(KEYS.key(each) for each in items)


def seeds() -> Iterator[bytes]:
    """One item and two: flat, nested and as bytes."""
    for at, codec in enumerate(CODECS):
        for count in (1, 2):
            arrays: dict[str, Array] = {}
            for spec in codec.manifest.inputs:
                shape = [2 if size == -1 else size for size in spec.item_shape]
                arrays[spec.name] = np.ones((count, *shape), spec.dtype)
            flat = [tensor(name, each, data=each.ravel()) for name, each in arrays.items()]
            nested = [tensor(name, each, data=each) for name, each in arrays.items()]
            for inputs in (flat, nested):
                yield bytes((at, 0xFF, 0xFF)) + dumped({"inputs": inputs})
            sized = [
                tensor(name, each, parameters={"binary_data_size": each.nbytes})
                for name, each in arrays.items()
            ]
            wanted = [{"name": "y", "parameters": {"binary_data": True, "classification": 2}}]
            head = dumped({"id": "a", "inputs": sized, "outputs": wanted})
            octets = b"".join(each.tobytes() for each in arrays.values())
            yield bytes((at,)) + len(head).to_bytes(2) + head + octets


def tensor(name: str, array: Array, **more: object) -> dict[str, Any]:
    """An input with its values."""
    datatype = DATATYPES[array.dtype.name]  # type: ignore[index]  # of a manifest
    return {"name": name, "datatype": datatype, "shape": array.shape, **more}


def dumped(document: object) -> bytes:
    """The JSON of a request."""
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


WORDS = (
    *(b'"inputs":[', b'"outputs":[', b'"name":', b'"shape":[', b'"datatype":', b'"data":['),
    *(b'"parameters":{', b'"binary_data_size":', b'"binary_data_output":true', b'"timeout":1'),
    *(b'"classification":', b'"shared_memory_region":"a"', b'"id":"a"', b'"BYTES"', b'"BF16"'),
    *(f'"{each}"'.encode() for each in DATATYPES.values()),
    *(b"9223372036854775808", b"18446744073709551616", b"-1", b"0", b"1e400", b"NaN", b"true"),
    *(b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", b"\x01\x00\x00\x00", b"null", b"[[", b"]]", b"{}"),
)
TARGET = Target(case, seeds, WORDS, max_bytes=2048)
