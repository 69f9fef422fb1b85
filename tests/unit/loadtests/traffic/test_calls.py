"""Refusals are right only with the right status, code and shape; failures are named by code."""

from __future__ import annotations

import orjson
import pytest

from loadtests.traffic.calls import Refused, failure

HEADERS = {"content-type": "application/json"}


def error(code: str = "invalid_input", **changes: object) -> bytes:
    whole = {"error": "send less", "code": code, "request_id": "r", "details": []}
    return orjson.dumps(whole | changes)


def test_correctly_refused_bad_input_is_no_problem() -> None:
    assert Refused(422, "invalid_input").problem(422, HEADERS, error()) is None


@pytest.mark.parametrize(
    ("status", "headers", "body", "words"),
    [
        (200, HEADERS, b"{}", "answered 200 instead of 422"),
        (400, HEADERS, error(), "answered 400 instead of 422"),
        (500, HEADERS, error("internal"), "answered 500"),
        (503, HEADERS, error("overloaded"), "503 overloaded"),
        (422, {"content-type": "text/html"}, error(), "text/html"),
        (422, HEADERS, error("not_found"), "422 not_found instead of"),
        (422, HEADERS, b"no", "not {error, code"),
        (422, HEADERS, b"[]", "not {error, code"),
        (422, HEADERS, orjson.dumps({"code": "invalid_input"}), "not {error, code"),
        (422, HEADERS, error(error=""), "not {error, code"),
        (422, HEADERS, error(trace="secret"), "not {error, code"),
    ],
)
def test_unexpected_answer_to_bad_input_is_a_problem(
    status: int, headers: dict[str, str], body: bytes, words: str
) -> None:
    problem = Refused(422, "invalid_input").problem(status, headers, body)
    assert problem is not None
    assert words in problem


def test_overload_failures_are_named_by_code_only() -> None:
    assert failure(503, error("overloaded", error="wait 12.3 s")) == "503 overloaded"
    assert failure(504, error("deadline_exceeded")) == "504 deadline_exceeded"
    assert failure(413, error("payload_too_large")) == "413 payload_too_large: send less"
    assert failure(502, b"<html>bad gateway") == "502: <html>bad gateway"
