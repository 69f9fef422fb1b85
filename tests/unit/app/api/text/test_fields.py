"""Bodies of calls for text: what is parsed, and what is too much to parse."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.api.text.fields import MAX_BODY_BYTES, MAX_MARKS, MAX_NUMBERS, parsed
from app.errors import InvalidInput, PayloadTooLarge


@pytest.mark.parametrize("text", ["[{:," * 30_000, '\\"[' * 30_000, "\\\\" * 30_000, '"' * 60_000])
def test_strings_are_not_counted(text: str) -> None:
    document = {"input": [text, "[", text], "model": "m"}
    assert parsed(json.dumps(document).encode()) == document


def test_largest_allowed_body_is_accepted() -> None:
    document: Any = {"input": [[1] * 60] * 4000}
    assert parsed(json.dumps(document).encode()) == document


@pytest.mark.parametrize(
    "document",
    [
        {"input": [[]] * MAX_MARKS + ["a"] * 30_000},
        {"input": [1] * (MAX_NUMBERS + 2)},
        {"input": ["a"] * (MAX_NUMBERS + 2)},
        {str(each): each for each in range(2 * MAX_MARKS)},
        {"input": "a" * MAX_BODY_BYTES},
    ],
)
def test_oversized_body_is_rejected(document: Any) -> None:
    with pytest.raises(PayloadTooLarge, match="split it"):
        parsed(json.dumps(document).encode())


@pytest.mark.parametrize("body", [b"", b"[]", b'"a"', b'{"a": }', b'{"a": "\\ud800"}', b"\xff"])
def test_body_that_is_not_an_object_is_rejected(body: bytes) -> None:
    with pytest.raises(InvalidInput, match="body"):
        parsed(body)
