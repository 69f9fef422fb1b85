"""The tensors of handlers: what a process that is not trusted may answer."""

from __future__ import annotations

import io
import re
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from app.codecs.declared import DeclaredTensors
from app.codecs.elements import join_bytes
from app.errors import HandlerOutputs
from tests.handlers import declared

INPUTS = declared({"x": "float32[-1,2]", "n": "int64[-1,-1]"})
OUTPUTS = declared({"boxes": "float32[-1,-1,4]", "ok": "bool[-1]"})
BOXES, OK = np.ones((1, 3, 4), np.float32), np.array([True])


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def test_numpy_reads_what_is_packed() -> None:
    arrays: dict[str, Any] = {"x": np.ones((2, 2), np.float32), "n": np.zeros((2, 5000), np.int64)}
    packed = DeclaredTensors(INPUTS, OUTPUTS).packed(arrays)
    with np.load(io.BytesIO(packed)) as file:
        assert set(file) == {"x", "n"}
        for name, array in arrays.items():
            assert file[name].dtype == array.dtype
            assert np.array_equal(file[name], array)


TEXTS = declared({"text": "bytes[-1,2]", "n": "int64[-1]"})
N = np.zeros(2, np.int64)


def octets(*elements: bytes) -> Any:
    return np.frombuffer(join_bytes(elements), np.uint8)


def test_bytes_of_an_answer() -> None:
    text = octets(b"a", b"\xff", b"", b"d")
    outputs = DeclaredTensors(INPUTS, TEXTS).unpacked(npz(text=text, n=N))
    assert (outputs["text"].shape, outputs["text"].array.tobytes()) == ((2, 2), text.tobytes())
    empty = DeclaredTensors(INPUTS, TEXTS).unpacked(npz(text=text[:0], n=N[:0]))
    assert empty["text"].shape == (0, 2)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (octets(b"a", b"b", b"c"), "3 elements do not fill whole items of 2"),
        (octets(b"a", b"b"), "differ in their number of items: {'text': 1, 'n': 2}"),
        (octets(b"a", b"b")[:-1], "'text': element 1 claims 1 bytes, 0 are left"),
        (np.array(["a", "b"]), "got an array of <U1"),
        (np.array([{}], dtype=object), "got an array of object"),
        (np.zeros((2, 2), np.uint8), "got shape"),
    ],
)
def test_bytes_that_differ(text: Any, why: str) -> None:
    with pytest.raises(HandlerOutputs, match=re.escape(why)):
        DeclaredTensors(INPUTS, TEXTS).unpacked(npz(text=text, n=N))


BOUNDS = declared({"ids": "int64[-1,1<=n<=3] in 0..9", "at": "int64[-1,n] in 0..<n"})


@pytest.mark.parametrize(
    ("ids", "at", "why"),
    [
        ([[1, 9]], [[0, 1]], ""),
        ([[1, 10]], [[0, 1]], "'ids': expected whole numbers in 0..9, got 10 at [0, 1]"),
        ([[1, 2, 3, 4]], [[0, 1]], "'ids': expected int64 of shape [n 1..3]"),
        ([[1, 2]], [[0]], "'at': axis 0 has size 1, but axis 0 of 'ids' has size 2"),
        ([[1, 2]], [[0, 2]], "in 0..<n, where n is 2, got 2 at [0, 1]"),
    ],
)
def test_bounds_of_an_answer(ids: Any, at: Any, why: str) -> None:
    body = npz(ids=np.array(ids), at=np.array(at))
    with pytest.raises(HandlerOutputs, match=re.escape(why)) if why else nullcontext():
        DeclaredTensors(INPUTS, BOUNDS).unpacked(body)


@pytest.mark.parametrize("boxes", [BOXES, BOXES[:, :0]])
def test_outputs(boxes: Any) -> None:
    outputs = DeclaredTensors(INPUTS, OUTPUTS).unpacked(npz(boxes=boxes, ok=OK))
    assert {name: array.shape for name, array in outputs.items()} == {
        "boxes": boxes.shape,
        "ok": (1,),
    }


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"no", "not a zip archive"),
        (npz(boxes=BOXES), "the arrays 'boxes'"),
        (npz(boxes=BOXES, ok=np.array([True, False])), "differ in their number of items"),
        (npz(boxes=BOXES[..., :3], ok=OK), "got shape"),
        (npz(boxes=np.array(["a"]), ok=OK), "got an array of <U1"),
        (npz(boxes=BOXES * np.nan, ok=OK), "'boxes': NaN, infinity"),
        (npz(boxes=np.array([{}], dtype=object), ok=OK), "got an array of object"),
    ],
)
def test_outputs_that_differ(body: bytes, why: str) -> None:
    with pytest.raises(HandlerOutputs, match=why):
        DeclaredTensors(INPUTS, OUTPUTS).unpacked(body)
