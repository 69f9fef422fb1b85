"""The items of a batch, which become parts of a larger document."""

from __future__ import annotations

import json

import pytest

from torchlane.handlers.answers import answer_of
from torchlane.handlers.api import Request, Response

ITEM = Request(b"", {"item": True})


@pytest.mark.parametrize(
    "body",
    [
        *(
            "[1]".encode("utf-16"),
            b"\xef\xbb\xbf[1]",
            b"[NaN]",
            b"[-Infinity]",
            b"[1",
            b"",
            b"\xff",
        ),
        b"[" * 100_000,
    ],
    ids=lambda body: repr(body[:12]),
)
def test_what_the_document_could_not_hold_is_refused(body: bytes) -> None:
    answer = answer_of(Response(body, "application/json"), ITEM, {})
    assert json.loads(answer.meta)["code"] == "handler_failed"


def test_json_other_types_and_no_content_are_taken() -> None:
    for response in (
        Response("[1, 2.5e3]", "application/json; charset=utf-8"),
        Response(b"\xff", "image/png"),
        Response(b"", "application/json", 204),
    ):
        answer = answer_of(response, ITEM, {})
        assert json.loads(answer.meta)["status"] == response.status
        assert answer.body == response.body
