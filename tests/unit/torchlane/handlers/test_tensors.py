"""The tensors that a handler declares: what fits them, in requests and in answers."""

from __future__ import annotations

import io
import json
import re
import tracemalloc
import zipfile
from typing import Any

import numpy as np
import pytest

from torchlane.handlers import tensors
from torchlane.handlers.api import Request
from torchlane.handlers.content import Content, InvalidInput
from torchlane.handlers.declarations import read_tensors
from torchlane.handlers.elements import MAX_ELEMENTS, packed
from torchlane.handlers.encoding import npz_of
from torchlane.handlers.plain import json_of
from torchlane.handlers.tensors import (
    NPZ,
    OutputsDiffer,
    arrays_in,
    outputs_of,
)

DECLARED = {"x": "float32[-1, 2]", "n": "uint8[-1]"}


def arrays(body: bytes, media_type: str = NPZ) -> dict[str, Any]:
    return arrays_in(Content(body, media_type), read_tensors(DECLARED, "inputs"))


@pytest.mark.parametrize(
    "body",
    [
        npz_of({"n": np.array([1, 2], np.uint8), "x": np.array([[1, 2], [3, 4]], np.float64)}),
        b'{"x": [[1, 2], [3, 4.0]], "n": [1, 2]}',
    ],
)
def test_request_has_arrays_of_the_declared_dtypes(body: bytes) -> None:
    result = arrays(body, NPZ if body[:1] == b"P" else "")
    assert {name: (str(each.dtype), each.tolist()) for name, each in result.items()} == {
        "x": ("float32", [[1, 2], [3, 4]]),
        "n": ("uint8", [1, 2]),
    }


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"[1]", "must have arrays or lists by name, 'x', 'n'; it is of the type list"),
        (b'{"x": [[1, 2]]}', "must have exactly 'x', 'n', got 'x'"),
        (b'{"x": [[1, 2]], "n": [1, 2]}', "the first axis, which counts the items, differs"),
        (b'{"x": [[1, 2, 3]], "n": [1]}', r"'x': expected float32\[-1,2\], got the shape \[1, 3\]"),
        (b'{"x": [[1, 2], [3]], "n": [1]}', "'x'.*got what is no array"),
        (b'{"x": [["a", "b"]], "n": [1]}', "'x'.*got a text"),
        (b'{"x": [[1, 2]], "n": [1.5]}', r"'n': expected uint8\[-1\], got values of float64"),
        (b'{"x": [[1, 2]], "n": [256]}', "'n'.*got numbers that are out of its range"),
        (b"{", "the body is not JSON"),
    ],
)
def test_request_that_does_not_fit(body: bytes, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        arrays(body, "application/json")


def test_file_that_is_damaged_or_unpacks_to_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    pickled = io.BytesIO()
    np.savez(pickled, x=np.array([{}], dtype=object))
    for body in (b"no", pickled.getvalue()):
        with pytest.raises(InvalidInput, match=r"no \.npz file"):
            arrays(body)
    archive_file = io.BytesIO()
    with zipfile.ZipFile(archive_file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", bytes(10_000))
    monkeypatch.setattr(tensors, "TO_HANDLER_BYTES", 9_999)
    with pytest.raises(InvalidInput, match="unpacks to 10000 bytes, the limit is 9999"):
        arrays(archive_file.getvalue())


def test_file_that_unpacks_to_many_times_its_size() -> None:
    file = io.BytesIO()
    np.savez_compressed(file, x=np.zeros(4 << 20, np.uint8))
    with pytest.raises(InvalidInput, match="unpacks to 4194"):
        arrays_in(Content(file.getvalue(), NPZ), read_tensors({"x": "bytes[-1]"}, "inputs"))


@pytest.mark.parametrize(
    "values",
    [
        np.zeros(4 * (MAX_ELEMENTS + 1), np.uint8),
        np.zeros(MAX_ELEMENTS + 1, "S1"),
    ],
    ids=["octets", "bytes"],
)
def test_too_many_elements(values: Any) -> None:
    with pytest.raises(InvalidInput, match=f"more than {MAX_ELEMENTS} elements"):
        arrays_in(Content(npz_of({"x": values}), NPZ), read_tensors({"x": "bytes[-1]"}, "inputs"))
    with pytest.raises(OutputsDiffer, match=f"more than {MAX_ELEMENTS} elements"):
        outputs_of({"x": [b""] * (MAX_ELEMENTS + 1)}, read_tensors({"x": "bytes[-1]"}, "outputs"))


def test_a_long_text_among_numbers_takes_no_memory() -> None:
    body = json.dumps({"x": ["a" * 100_000] + [""] * 10_000}).encode()
    tracemalloc.start()
    with pytest.raises(InvalidInput, match="got a text"):
        arrays_in(Content(body, ""), read_tensors({"x": "float32[-1]"}, "inputs"))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 10 << 20


@pytest.mark.parametrize("number", ["1e999", "-1e999", "1e300"])
def test_numbers_are_finite(number: str) -> None:
    body = b'{"x": [%b]}' % number.encode()
    with pytest.raises(InvalidInput, match="infinity"):
        arrays_in(Content(body, ""), read_tensors({"x": "float32[-1]"}, "inputs"))


def test_media_type_of_a_file_may_have_parameters() -> None:
    body = Content(npz_of({"x": np.zeros(1, np.float32)}), "Application/X-NPZ; a=b")
    assert arrays_in(body, read_tensors({"x": "float32[-1]"}, "inputs"))["x"].tolist() == [0]


TEXTS = [[b"a", "é".encode()], [b"", b"d"]]


@pytest.mark.parametrize(
    "body",
    [
        json_of({"text": np.array(TEXTS, object)}),
        npz_of({"text": np.array([["a", "é"], ["", "d"]])}),
        npz_of({"text": np.array(TEXTS)}),
        npz_of({"text": packed(np.array(TEXTS, object))}),
    ],
    ids=["JSON", "texts", "bytes", "octets"],
)
def test_request_has_bytes(body: bytes) -> None:
    content = Content(body, "" if body[:1] == b"{" else NPZ)
    text = arrays_in(content, read_tensors({"text": "bytes[-1,2]"}, "inputs"))["text"]
    assert (text.dtype, text.tolist()) == (object, TEXTS)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"text": ["a", 1]}', r"'text': expected bytes\[-1\], got a value of type int; use str"),
        (b'{"text": ["a", ["b"]]}', "got a value of type list"),
        (b'{"text": "a"}', r"got the shape \[\]"),
        (b'{"text": ["\\ud800"]}', "got a text with half of a surrogate pair"),
        (npz_of({"text": np.array([1])}), "got a value of type int"),
        (npz_of({"text": np.frombuffer(b"\1\0\0\0", np.uint8)}), "element 0 is cut off"),
        (npz_of({"text": np.frombuffer(b"\1\0\0", np.uint8)}), "element 0 is cut off"),
    ],
)
def test_request_without_bytes(body: bytes, why: str) -> None:
    content = Content(body, "" if body[:1] == b"{" else NPZ)
    with pytest.raises(InvalidInput, match=why):
        arrays_in(content, read_tensors({"text": "bytes[-1]"}, "inputs"))


@pytest.mark.parametrize(
    "value",
    [["é", b"b\xff"], np.array(["é".encode(), b"b\xff"], object), ("é", np.bytes_(b"b\xff"))],
)
def test_answer_has_octets(value: Any) -> None:
    outputs = read_tensors({"text": "bytes[-1]"}, "outputs")
    octets = outputs_of({"text": value}, outputs)["text"]
    assert octets.tobytes() == b"\x02\0\0\0\xc3\xa9\x02\0\0\0b\xff"
    with pytest.raises(OutputsDiffer, match="got a value of type NoneType; use str or bytes"):
        outputs_of({"text": ["a", None]}, outputs)


BOUNDS = {
    "ids": "int64[-1,1<=seq<=3] in 0..49",
    "at": "int16[-1,seq] in ..<seq",
    "k": "int8[-1,-1<=2]",
}


IDS = "'ids': expected int64[-1,1<=seq<=3] in 0..49, got"


def test_request_within_bounds() -> None:
    body = json_of({"ids": [[0, 49]], "at": [[-1, 1]], "k": [[]]})
    found = arrays_in(Content(body, ""), read_tensors(BOUNDS, "inputs"))
    assert [array.shape for array in found.values()] == [(1, 2), (1, 2), (1, 0)]


@pytest.mark.parametrize(
    ("changes", "why", "got", "limit"),
    [
        ({"ids": [[1, 2, 3, 4]]}, f"{IDS} the shape [1, 4]", 4, 3),
        ({"ids": [[]]}, f"{IDS} the shape [1, 0]", 0, 1),
        ({"ids": [[1, 50]]}, f"{IDS} 50", 50, 49),
        ({"ids": [[-1, 0]]}, f"{IDS} -1", -1, 0),
        ({"at": [[0]]}, "'at': 'seq' has size 1 here and 2 in another axis", 1, 2),
        ({"at": [[0, 2]]}, "in ..<seq, where seq is 2, got 2", 2, 1),
        ({"k": [[1, 2, 3]]}, "'k': expected int8[-1,-1<=2], got the shape [1, 3]", 3, 2),
    ],
)
def test_request_out_of_bounds(changes: Any, why: str, got: int, limit: int) -> None:
    value = {"ids": [[1, 2]], "at": [[0, 1]], "k": [[1]]} | changes
    tensors = read_tensors(BOUNDS, "inputs")
    with pytest.raises(InvalidInput, match=re.escape(why)) as caught:
        arrays_in(Content(json_of(value), ""), tensors)
    (name,) = changes
    assert caught.value.details == ({"input": name, "got": got, "limit": limit},)
    with pytest.raises(OutputsDiffer, match=re.escape(why)):
        outputs_of(value, tensors)


def test_class_without_declarations_has_no_tensors() -> None:
    with pytest.raises(TypeError, match="needs a class with `inputs` and `outputs`"):
        _ = Request(b"{}", {}).tensors


def test_answer_is_converted_to_the_declared_outputs() -> None:
    outputs = read_tensors({"boxes": "float32[-1,-1,4]", "ok": "bool[-1]"}, "outputs")
    result = outputs_of({"ok": [True, False], "boxes": np.zeros((2, 0, 4))}, outputs)
    assert [(str(each.dtype), each.shape) for each in result.values()] == [
        ("float32", (2, 0, 4)),
        ("bool", (2,)),
    ]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("text", "the handler's answer must have arrays or lists by name, 'y'; .* type str"),
        ({"z": [[1.0, 2.0]]}, "exactly 'y', got 'z'"),
        ({"y": [1.0, 2.0]}, r"'y': expected float32\[-1,2\], got the shape \[2\]"),
        ({"y": [[True, False]]}, "got values of bool"),
    ],
)
def test_answer_that_does_not_fit(value: Any, why: str) -> None:
    with pytest.raises(OutputsDiffer, match=why):
        outputs_of(value, read_tensors({"y": "float32[-1,2]"}, "outputs"))
