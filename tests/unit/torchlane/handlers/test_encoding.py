"""What handlers return and send, in the forms of the native contract."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydantic import BaseModel

from app.api.multipart import read_files
from torchlane.handlers.api import CallFailed, Request, Response
from torchlane.handlers.encoding import (
    Encoded,
    NotAcceptable,
    accept_of,
    decode_replies,
    decode_reply,
    encode_answer,
    encode_item,
    encode_items,
    npy_of,
    npz_of,
    png_of,
    weight_of,
)


@dataclass
class Box:
    left: int
    score: Any


class Item(BaseModel):
    price: float


ARRAY = np.array([[1.5, 2.0]], np.float32)
PICTURE = Image.new("RGB", (3, 2), "red")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": [1, 2.5, None, True, "ä"]}, '{"a":[1,2.5,null,true,"ä"]}'),
        (Box(1, np.float32(0.5)), '{"left":1,"score":0.5}'),
        ([Item(price=2)], '[{"price":2.0}]'),
        (ARRAY, "[[1.5,2.0]]"),
        ({"a": ARRAY, "n": np.int64(3)}, '{"a":[[1.5,2.0]],"n":3}'),
        ("text", '"text"'),
        (None, "null"),
    ],
)
def test_answers_in_json(value: object, text: str) -> None:
    status, encoded = encode_answer(value, "")
    assert (status, encoded) == (200, Encoded("application/json", text.encode()))


def circle() -> list[Any]:
    items: list[Any] = []
    items.append(items)
    return items


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (np.array([1.0, np.nan]), r"no NaN and no infinity at \[1\]"),
        ({"a": Box(1, np.float32("inf"))}, r"no infinity at \.a\.score"),
        ({(1, 2): 3}, "keys must be str"),
        (1j, "an object of type complex"),
        ("\ud800", "half of a surrogate pair"),
        ([PICTURE], "an object of type Image"),
        (circle(), "contains itself"),
        (b"1", "bytes have no media type"),
        ([b"a"], "no form for an object of type bytes"),
        (np.array([b"a", b"b\xff"], object), "can't decode byte 0xff"),
        (Image.new("CMYK", (1, 1)), r'picture\.convert\("RGB"\)'),
    ],
)
def test_what_has_no_form_is_refused(value: object, reason: str) -> None:
    with pytest.raises((TypeError, ValueError), match=reason):
        encode_answer(value, "")


def test_other_answers() -> None:
    status, encoded = encode_answer(PICTURE, "")
    assert (status, encoded.media_type) == (200, "image/png")
    assert Image.open(io.BytesIO(encoded.body)).size == (3, 2)
    assert encode_answer(Response("<p>", "text/html", 201), "") == (
        201,
        Encoded("text/html", b"<p>"),
    )
    _, encoded = encode_answer(ARRAY, "application/x-npy")
    assert np.array_equal(np.load(io.BytesIO(encoded.body)), ARRAY)


def test_accept_that_excludes_the_answer() -> None:
    with pytest.raises(NotAcceptable, match="image/png, which Accept does not allow"):
        encode_answer(PICTURE, "application/json")
    assert encode_answer(Response("no", "text/plain", 404), "application/json")[0] == 404


@pytest.mark.parametrize(
    ("accept", "weight"),
    [
        ("", 1),
        ("*/*", 1),
        ("image/*;q=0.5, */*;q=0.1", 0.5),
        ("image/png;q=0, */*", 0),
        ("application/json", 0),
        ("text/html, IMAGE/PNG;q=0.25", 0.25),
        ("image/png;q=x", 1),
    ],
)
def test_weights_of_accept(accept: str, weight: float) -> None:
    assert weight_of("image/png", accept) == weight


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((1, "a/b"), "bytes or str, not int"),
        (("", "a/b", 99), "from 200 to 599"),
        (("", "png"), "a media type"),
        (("", "a/b\r\nx: y"), "a media type"),
    ],
)
def test_response_that_cannot_be_sent(arguments: tuple[Any, ...], reason: str) -> None:
    with pytest.raises((TypeError, ValueError), match=reason):
        Response(*arguments)


def test_status_may_be_one_of_the_standard_library() -> None:
    assert encode_answer(Response("", "a/b", HTTPStatus.CREATED), "")[0] == 201


def test_arguments_of_calls() -> None:
    assert encode_item([1, 2]) == ("application/json", b'{"input":[1,2]}', True)
    assert encode_item("text") == ("application/json", b'{"input":"text"}', True)
    assert encode_item(b"\x89PNG") == Encoded("", b"\x89PNG")
    assert encode_item(Request(b"1", {"media_type": "a/b"})) == Encoded("a/b", b"1")
    assert np.array_equal(np.load(io.BytesIO(encode_item(ARRAY).body)), ARRAY)
    media_type, body, _ = encode_item({"a": ARRAY, "file": ARRAY})
    assert media_type == "application/x-npz"
    assert dict(np.load(io.BytesIO(body))).keys() == {"a", "file"}


def test_bytes_in_arrays_are_texts_in_json() -> None:
    texts = np.array([b"a", "é".encode()], object)
    expected = Encoded("application/json", '{"input":{"text":["a","é"]}}'.encode(), True)
    assert encode_item({"text": texts}) == expected
    assert json.loads(encode_items([texts, texts]).body) == {"inputs": [["a", "é"]] * 2}
    assert encode_answer(texts, "application/x-npy, */*;q=0.1")[1].body == '["a","é"]'.encode()


def test_picture_that_is_untouched_is_sent_as_it_came() -> None:
    file = io.BytesIO()
    PICTURE.save(file, "JPEG")
    picture = Request(file.getvalue(), {}).image()
    assert encode_item(picture) == Encoded("", file.getvalue())
    picture.putpixel((0, 0), (0, 0, 255))
    media_type, body, _ = encode_item(picture)
    assert media_type == "image/png"
    assert Image.open(io.BytesIO(body)).getpixel((0, 0)) == (0, 0, 255)


def test_items_of_a_batch() -> None:
    assert encode_items([1, [2]]) == Encoded("application/json", b'{"inputs":[1,[2]]}')
    stacked = encode_items([ARRAY, ARRAY])
    assert np.load(io.BytesIO(stacked.body)).shape == (2, 1, 2)
    ragged = encode_items([ARRAY, ARRAY[0]])
    assert json.loads(ragged.body) == {"inputs": [[[1.5, 2.0]], [1.5, 2.0]]}
    files = encode_items([PICTURE, b"GIF8"])
    sent = read_files(files.media_type, files.body, 2)
    assert [bytes(each.data) for each in sent] == [png_of(PICTURE), b"GIF8"]


@pytest.mark.parametrize(
    ("items", "reason"),
    [
        ([], "at least one item"),
        ([b"a", 1], "files .* or other items, not both"),
        ([Request(b"1", {})], "not requests"),
    ],
)
def test_items_that_cannot_be_sent(items: list[Any], reason: str) -> None:
    with pytest.raises((TypeError, ValueError), match=reason):
        encode_items(items)


def test_replies() -> None:
    native = b'{"model":"m","version":1,"prediction":{"label":"a"}}'
    assert decode_reply("m", Encoded("application/json", native)) == {"label": "a"}
    assert decode_reply("h", Encoded("application/json", b"[1]")) == [1]
    arrays = decode_reply("m", Encoded("application/x-npz", npz_of({"y": ARRAY})))
    assert np.array_equal(arrays["y"], ARRAY)
    array = decode_reply("h", Encoded("application/x-npy", npy_of(ARRAY)))
    assert np.array_equal(array["h"], ARRAY)
    array = decode_reply("m", Encoded("application/x-npy", npy_of(ARRAY)), output="y")
    assert [*array] == ["y"]


@pytest.mark.parametrize(
    "array",
    [
        np.float32(1.5),
        np.zeros((0, 3), np.int64),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array([True, False]),
        np.arange(3, dtype=">i4"),
        np.zeros(2, [("é", "f4")]),  # its header is of version 3
    ],
    ids=str,
)
def test_arrays_of_replies(array: Any) -> None:
    encoded = Encoded("application/x-npy", npy_of(np.asanyarray(array)))
    for _ in range(2):  # the second time its header is known
        decoded = decode_reply("m", encoded)["m"]
        assert np.array_equal(decoded, array)
        assert decoded.dtype == array.dtype
        assert decoded.flags.writeable


def test_replies_with_python_objects_are_not_read() -> None:
    file = io.BytesIO()
    np.save(file, np.array([None]), allow_pickle=True)
    with pytest.raises(ValueError, match="object"):
        decode_reply("h", Encoded("application/x-npy", file.getvalue()))


def test_calls_accept_what_other_handlers_answer() -> None:
    assert encode_answer(PICTURE, accept_of(arrays=False))[1].media_type == "image/png"
    assert encode_answer(ARRAY, accept_of(arrays=False))[1].media_type == "application/json"


@pytest.mark.parametrize(
    ("media_type", "body", "status"),
    [("image/png", b"x", 201), ("text/plain", b"[1]", 200), ("Application/Json", b"", 204)],
)
def test_other_replies_are_responses(media_type: str, body: bytes, status: int) -> None:
    response = decode_reply("h", Encoded(media_type, body), status)
    assert (response.media_type, response.body, response.status) == (media_type, body, status)


def test_reply_that_is_not_what_it_says() -> None:
    with pytest.raises(ValueError, match="the answer of h is not JSON"):
        decode_reply("h", Encoded("Application/JSON; charset=utf-8", b"?"))


def test_replies_to_a_batch() -> None:
    many = b'{"failed":0,"predictions":[{"label":"a"},{"label":"b"}]}'
    results = decode_replies("m", Encoded("application/json", many), 2)
    assert [each["label"] for each in results] == ["a", "b"]
    stacked = npz_of({"y": np.arange(4).reshape(2, 2)})
    first, second = decode_replies("m", Encoded("application/x-npz", stacked), 2)
    assert (first["y"].tolist(), second["y"].tolist()) == ([0, 1], [2, 3])
    failed = b'{"failed":1,"predictions":[1,{"error":"no","code":"backend_failed"}]}'
    with pytest.raises(CallFailed, match="item 1: no") as failure:
        decode_replies("m", Encoded("application/json", failed), 2)
    assert failure.value.code == "backend_failed"


def test_items_of_another_handlers_batch() -> None:
    answer = {"predictions": [1, {"media_type": "a/b", "base64": "aGk="}]}
    one, other = decode_replies("m", Encoded("application/json", json.dumps(answer).encode()), 2)
    assert one == 1
    assert (other.media_type, other.body) == ("a/b", b"hi")
    answer["predictions"][1] = {"error": "no", "code": "handler_failed"}
    with pytest.raises(CallFailed, match="item 1: no") as caught:
        decode_replies("m", Encoded("application/json", json.dumps(answer).encode()), 2)
    assert caught.value.code == "handler_failed"
