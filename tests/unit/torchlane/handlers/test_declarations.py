"""The texts of tensors: what they say, and what is no declaration."""

from __future__ import annotations

from typing import Any

import pytest

from models.handlers import declared_tensors
from torchlane.handlers.declarations import MAX_SIZE, Axis, Tensor, read_tensors

DECLARED = {
    "x": "float32[-1, 2]",
    "n": "uint8[-1] in 1..",
    "ids": "int64[-1,1<=seq<=512] in 0..49",
    "at": "int64[-1, seq,-1<=9, 2<=-1] in ..<seq",
    "text": "bytes[-1,2]",
}
SEQ = Axis("seq", 1, 512)


def test_texts() -> None:
    tensors = read_tensors(DECLARED, "inputs")
    assert tensors == {
        "x": Tensor("float32", (Axis(None, 2, 2),)),
        "n": Tensor("uint8", (), 1),
        "ids": Tensor("int64", (SEQ,), 0, 49),
        "at": Tensor("int64", (SEQ, Axis(None, 0, 9), Axis(None, 2, MAX_SIZE)), below="seq"),
        "text": Tensor("bytes", (Axis(None, 2, 2),)),
    }
    shown = {name: str(tensor) for name, tensor in tensors.items()}
    assert shown == {
        "x": "float32[-1,2]",
        "n": "uint8[-1] in 1..",
        "ids": "int64[-1,1<=seq<=512] in 0..49",
        "at": "int64[-1,1<=seq<=512,-1<=9,2<=-1] in ..<seq",
        "text": "bytes[-1,2]",
    }
    assert read_tensors(shown, "inputs") == tensors  # as export reads it
    assert {each.name: each.declaration for each in declared_tensors(tensors)} == shown


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (["x"], "must be a dict"),
        ({"a b": "float32[-1]"}, "has the name 'a b'"),
        ({"x": "float31[-1]"}, r"Shop.inputs\['x'\] is 'float31\[-1\]'"),
        ({"x": "float32"}, "write a dtype and sizes"),
        ({"x": "float32[]"}, "write a dtype and sizes"),
        ({"x": "float32[4]"}, "the first one counts the items and is -1"),
        ({"x": "float32[n,4]"}, "the first one counts the items and is -1"),
        ({"x": "float32[-1,0]"}, "write a dtype and sizes"),
        ({"x": "float32[-1,1-2]"}, "write a dtype and sizes"),
        ({"x": "float32[-1,1<n<2]"}, "write a dtype and sizes"),
        ({"x": "float32[-1] or nan"}, "write a dtype and sizes"),
        ({"x": 1}, r"\['x'\] is 1"),
        ({"x": "bytes[-1,-1]"}, r"'bytes\[-1,-1\]'; only the first size of bytes can be -1"),
        ({"x": "bytes[-1,n<=1]"}, "only the first size of bytes can be -1"),
        ({"x": "bytes[-1] in 0..1"}, "only integers have a range, not bytes"),
        ({"x": "float32[-1] in 0..1"}, "only integers have a range, not float32"),
        ({"x": "int8[-1] in 0..128"}, r"outside of int8, which is -128..127"),
        ({"x": "uint8[-1] in -1.."}, r"outside of uint8, which is 0..255"),
        ({"x": "int64[-1] in 2..1"}, r"the range of int64\[-1\] in 2..1 is empty"),
        ({"x": "float32[-1,3<=n<=2]"}, "no size is in 3<=n<=2"),
        ({"x": "int64[-1,n] in 0..<m"}, "no size has the name 'm'"),
        ({"x": "int8[-1,n<=2]", "y": "int8[-1,n<=3]"}, "one name has one size, got n<=2 and n<=3"),
    ],
)
def test_texts_that_are_wrong(texts: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_tensors(texts, "Shop.inputs")
