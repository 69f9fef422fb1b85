"""Arrays of binary tensors: aligned, and not at the cost of a whole body."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from app.api.oip.infer import parse_body
from app.api.oip.requests import InferRequest, Tensor
from app.api.oip.tensors import arrays_of, items_at, items_of, layout_of
from app.codecs.base import Budget, Codec
from app.codecs.choose import codec_for
from app.codecs.declared import DeclaredTensors
from app.codecs.elements import join_bytes
from app.errors import InvalidInput
from app.types import Array
from models.codec_specs import AudioCodecSpec
from models.tensors import Dimension, TensorSpec
from tests.handlers import declared
from tests.unit.models.manifests import make_manifest, spec
from tests.unit.models.sounds import wav

WIDE = 512
OCTETS = np.arange(WIDE, dtype="<f4").tobytes()


def codec() -> Codec:
    return codec_for(make_manifest([spec("x", "float32", (-1, WIDE))]))


def head(padding: int = 0) -> bytes:
    given = b'{"name":"x","datatype":"FP32","shape":[1,%d],' % WIDE
    sized = b'"parameters":{"binary_data_size":%d}}' % len(OCTETS)
    return b'{"inputs":[' + given + sized + b"]}" + b" " * padding


def read(padding: int) -> tuple[bytes, list[Array], InferRequest]:
    """A body, its array as it is read first and with a known layout, and the request."""
    json, budget = head(padding), Budget()
    body = json + OCTETS
    request = parse_body(codec(), body, len(json), 4, budget)
    (first,) = items_of(codec(), request.inputs, 4, budget)
    layout = layout_of(codec(), request)
    assert layout is not None
    (again,) = items_at(codec(), layout, body, len(json))
    return body, [first.arrays["x"], again.arrays["x"]], request


@pytest.mark.parametrize("padding", range(8))
def test_arrays_are_aligned_at_any_byte_offset(padding: int) -> None:
    for array in read(padding)[1]:
        assert array.flags.aligned
        assert array.tobytes() == OCTETS


@pytest.mark.parametrize(("padding", "kept"), [(0, True), (1 << 16, False)])
def test_small_arrays_do_not_keep_large_bodies(padding: int, kept: bool) -> None:
    padding += -len(head()) % 4  # else they are copied in any case
    body, arrays, _ = read(padding)
    whole = np.frombuffer(body, np.uint8)
    assert [np.shares_memory(array, whole) for array in arrays] == [kept] * 2


@pytest.mark.parametrize("names", [["audio", "mask"], ["mask", "audio"]])
def test_a_file_comes_alone_in_any_order(names: list[str]) -> None:
    """The codec fills the mask of a sound: one that was sent would be ignored."""
    n = Dimension(name="n", least=1, most=9, mask="mask")
    inputs = [
        TensorSpec(name="audio", dtype="float32", shape=(-1, -1), dimensions=(n,)),
        TensorSpec(name="mask", dtype="int64", shape=(-1, -1), dimensions=(n,)),
    ]
    output = TensorSpec(name="value", dtype="float32", shape=(-1, 1))
    codec = codec_for(make_manifest(inputs, [output], codec=AudioCodecSpec(rate=16_000)))
    given = {
        "audio": Tensor("audio", "BYTES", (1,), [base64.b64encode(wav(np.zeros(9))).decode()]),
        "mask": Tensor("mask", "INT64", (1, 9), [0] * 9),
    }
    with pytest.raises(InvalidInput, match=r"expected exactly the inputs \['audio'\], got"):
        items_of(codec, [given[name] for name in names], 4, Budget())
    assert len(items_of(codec, [given["audio"]], 4, Budget())) == 1


TEXTS = DeclaredTensors(declared({"text": "bytes[-1,2]"}), ())


@pytest.mark.parametrize(
    "data",
    [
        ["a", "é", "", "d"],
        [["a", "é"], ["", "d"]],
        [b"a", "é".encode(), b"", b"d"],  # typed contents of gRPC
        memoryview(join_bytes([b"a", "é".encode(), b"", b"d"])),
    ],
)
def test_texts_of_a_handler_are_octets(data: Any) -> None:
    arrays = arrays_of(TEXTS, [Tensor("text", "BYTES", (2, 2), data)], 2)
    assert arrays["text"].tobytes() == join_bytes([b"a", "é".encode(), b"", b"d"])


@pytest.mark.parametrize(
    ("data", "shape", "why"),
    [
        (["a"], (1, 2), r"input 'text': 1 elements for the shape \[1, 2\]"),
        ([["a", "b"], ["c"]], (2, 2), "1 elements in an item for the shape"),
        ([["a"], ["b", "c", "d"]], (2, 2), "1 elements in an item for the shape"),
        (["a", 1], (1, 2), "each element of BYTES is a string, got a number"),
        ([["a", None]], (1, 2), "each element of BYTES is a string, got null"),
        ([[["a"], ["b"]]], (1, 2), "each element of BYTES is a string, got a list"),
        (["a", "b", "c"], (1, 3), r"'text': expected bytes of shape \[2\], got shape \[3\]"),
        (memoryview(join_bytes([b"a"])), (1, 2), "1 of 2 elements with their lengths"),
    ],
)
def test_texts_that_a_handler_does_not_take(data: Any, shape: tuple[int, ...], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        arrays_of(TEXTS, [Tensor("text", "BYTES", shape, data)], 2)


BOUNDS = DeclaredTensors(declared({"ids": "int64[-1,1<=n<=3] in 0..9", "at": "int64[-1,n]"}), ())


@pytest.mark.parametrize(
    ("ids", "at", "details"),
    [
        ([[1, 9], [0, 0]], [[0, 1], [0, 1]], None),
        ([[1, 9], [10, 0]], [[0, 1], [0, 1]], {"index": 1, "input": "ids", "got": 10, "limit": 9}),
        ([[1, 2, 3, 4]], [[0, 1]], {"input": "ids", "got": 4, "limit": 3}),
        ([[1, 2]], [[0]], {"input": "at", "got": 1, "limit": 2}),
    ],
)
def test_bounds_of_a_handler(ids: Any, at: Any, details: Any) -> None:
    tensors = [
        Tensor(name, "INT64", np.shape(rows), rows) for name, rows in (("ids", ids), ("at", at))
    ]
    if details is None:
        assert arrays_of(BOUNDS, tensors, 2)["ids"].tolist() == ids
        return
    with pytest.raises(InvalidInput) as caught:
        arrays_of(BOUNDS, tensors, 2)
    assert caught.value.details[0].items() >= details.items()
