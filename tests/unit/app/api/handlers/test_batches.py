"""Bodies of batches are cut into items as they were sent; answers are written in pieces."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api.handlers import batches
from app.api.handlers.batches import items_of, pieces_of
from app.errors import HandlerFailed, InvalidInput, PayloadTooLarge
from app.handlers.contract import HandlerAnswer
from app.types import ModelId

TEXTS = st.text('"\\[]{},:aé', max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(
    st.lists(VALUES, min_size=1, max_size=5),
    st.booleans(),
    st.sampled_from([None, 1]),
    st.integers(2, 40),
)
def test_items_are_what_was_sent(
    values: list[Any], ascii_only: bool, spaces: int | None, scan: int
) -> None:
    body = json.dumps({"inputs": values}, ensure_ascii=ascii_only, indent=spaces).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "SCAN_BYTES", scan)
        items = items_of(body, "application/json", 5)
    assert [json.loads(item) for _, item in items] == values
    assert {media_type for media_type, _ in items} == {"application/json"}


def test_items_keep_every_octet() -> None:
    body = b'\xef\xbb\xbf {"inputs" : [ 12345678901234567890123 , {"a":1,"a":2}\n, 1.0e5] } \n'
    items = [item for _, item in items_of(body, "", 9)]
    assert items == [b"12345678901234567890123", b'{"a":1,"a":2}', b"1.0e5"]


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{}", b"[1]", b'{"inputs": []}', b'{"inputs": [ ]}', b'{"inputs": 1}'),
        *(b'{"inputs":[1,,2]}', b'{"inputs":[1,]}', b'{"inputs":[,1]}', b'{"inputs":[1}'),
        *(b'{"inputs":[1]', b'{"inputs":[1]}x', b'{"inputs":[1],"a":2}', b'{"a":1,"inputs":[1]}'),
        *(b'{"inputs":["a]}', b'{"inputs":[1}]', b'{"inputs":[\\', b'{"inputs":[[1]}'),
        *(b'\v{"inputs":[1]}', b'{"inputs":[1]}\f', b'{"inputs":[1]\xc2\xa0}'),
    ],
)
def test_another_shape_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput, match=r'must be \{"inputs": '):
        items_of(body, "", 9)


def test_too_many_items_are_refused_before_the_rest_is_read() -> None:
    body = b'{"inputs":[' + b"[]," * 1_000_000
    with pytest.raises(PayloadTooLarge, match="more than 7 items"):
        items_of(body, "", 7)


def test_answers_of_every_kind_are_one_document() -> None:
    octets = bytes(range(256)) * 1000  # longer than what is encoded at once
    places: list[HandlerAnswer | HandlerFailed] = [
        HandlerAnswer(200, "application/json; charset=utf-8", b'{"a": 1}'),
        HandlerAnswer(200, "image/png", octets),
        HandlerAnswer(404, "text/plain", b"none"),
        HandlerFailed("it failed"),
    ]
    document = json.loads(b"".join(pieces_of(ModelId("shop", 3), places)))
    assert document == {
        "model": "shop",
        "version": 3,
        "predictions": [
            {"a": 1},
            {"media_type": "image/png", "base64": base64.b64encode(octets).decode()},
            {"error": "the handler answered 404: none", "code": "handler_status"},
            {"error": "it failed", "code": "handler_failed"},
        ],
    }


@pytest.mark.parametrize("charset", ["utf-16", "utf-32"])
def test_another_encoding_is_refused(charset: str) -> None:
    with pytest.raises(InvalidInput, match="the body is not JSON"):
        items_of('{"inputs":[1]}'.encode(charset), "", 9)
