"""The tensors of handlers: what a process that is not trusted may answer."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from app.codecs.declared import DeclaredTensors
from app.errors import HandlerOutputs
from models.handlers import declared_tensors

INPUTS = declared_tensors({"x": ("float32", (-1, 2)), "n": ("int64", (-1, -1))})
OUTPUTS = declared_tensors({"boxes": ("float32", (-1, -1, 4)), "ok": ("bool", (-1,))})
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
        (npz(boxes=BOXES * np.nan, ok=OK), "'boxes' has NaN or infinity"),
        (npz(boxes=np.array([{}], dtype=object), ok=OK), "got an array of object"),
    ],
)
def test_outputs_that_differ(body: bytes, why: str) -> None:
    with pytest.raises(HandlerOutputs, match=why):
        DeclaredTensors(INPUTS, OUTPUTS).unpacked(body)
