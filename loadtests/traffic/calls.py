"""A request to send, and its correct answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import orjson

JSON = "application/json"
ERROR_FIELDS = {"error", "code", "request_id", "details"}
MAX_SHOWN_CHARACTERS = 200  # of an answer, in a sentence about it
# The server is overloaded, not wrong: named only by code, so that a report counts them together.
UNAVAILABLE = (503, 504)


class Expectation(Protocol):
    """Judges the answer to one call."""

    def problem(self, status: int, headers: Mapping[str, str], body: bytes) -> str | None:
        """Say in a sentence what is wrong with an answer; None if nothing is.

        Args:
            status: HTTP status.
            headers: of the answer, names in lower case; only `content-type` is used.
            body: the complete body.
        """


@dataclass(frozen=True, slots=True)
class Call:
    """A POST request and its correct answer.

    Attributes:
        path: for example /models/digits/predict.
        headers: Content-Type, and Accept if the answer must not be JSON.
        body: the bytes to send.
        items: number of requested predictions; 0 if it must be rejected.
        expected: judges the answer.
    """

    path: str
    headers: Mapping[str, str]
    body: bytes
    items: int
    expected: Expectation


@dataclass(frozen=True, slots=True)
class Refused:
    """Expects an error for invalid input with this status and code, in the service's format."""

    status: int
    code: str

    def problem(self, status: int, headers: Mapping[str, str], body: bytes) -> str | None:
        """See `Expectation`."""
        wanted = f"{self.status} {self.code}"
        if status in UNAVAILABLE:
            return failure(status, body)
        if status != self.status:
            return f"bad input was answered {status} instead of {wanted}"
        if headers.get("content-type", "").partition(";")[0] != JSON:
            return f"an error of Content-Type {headers.get('content-type')!r} instead of {JSON}"
        error = _error_of(body)
        if error is None or set(error) != ERROR_FIELDS or not error["error"]:
            return f"an error that is not {{error, code, request_id, details}}: {_shown(body)}"
        if error["code"] != self.code:
            return f"bad input was answered {status} {error['code']} instead of {wanted}"
        return None


def failure(status: int, body: bytes) -> str:
    """Name an answer that is not 200 by status and code, with its message if it is a fault."""
    error = _error_of(body)
    if error is None or "code" not in error:
        return f"{status}: {_shown(body)}"
    if status in UNAVAILABLE:
        return f"{status} {error['code']}"
    return f"{status} {error['code']}: {str(error.get('error'))[:MAX_SHOWN_CHARACTERS]}"


def _error_of(body: bytes) -> dict[str, object] | None:
    try:
        error = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return error if isinstance(error, dict) else None


def _shown(body: bytes) -> str:
    return body[:MAX_SHOWN_CHARACTERS].decode(errors="replace")
