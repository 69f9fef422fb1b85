"""A request to send, and its correct answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from loadtests.traffic.answers import CorrectAnswer, Judge, WrongAnswer

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
class LoadCall:
    """A POST request and its correct answer.

    Attributes:
        headers: Content-Type, and Accept if the answer must not be JSON.
        items: number of requested predictions; 0 if it must be rejected.
    """

    path: str
    headers: Mapping[str, str]
    body: bytes
    items: int
    expected: Expectation


@dataclass(frozen=True, slots=True)
class ExpectedPredictions:
    """Expects a 200 in JSON with these predictions in order.

    Attributes:
        correct: the correct answers; None if only the form can be checked.
        many: whether the call was /batch-predict.
        twins: indices of equal items, whose answers must be equal.
    """

    judge: Judge
    correct: Sequence[CorrectAnswer | None]
    many: bool = False
    twins: Sequence[tuple[int, int]] = ()

    def problem(self, status: int, headers: Mapping[str, str], body: bytes) -> str | None:
        if (problem := _head_problem(status, headers, body, JSON)) is not None:
            return problem
        field, answer = "predictions" if self.many else "prediction", _object(body)
        if answer is None or answer.keys() != {"model", "version", field}:
            return f"200 with a body that is not {{model, version, {field}}}"
        predictions = answer[field] if self.many else [answer[field]]
        if not isinstance(predictions, list) or len(predictions) != len(self.correct):
            count = len(predictions) if isinstance(predictions, list) else "no"
            return f"{count} predictions for {len(self.correct)} items"
        try:
            self.judge.check_head(answer)
            for one, correct in zip(predictions, self.correct, strict=True):
                self.judge.check(one, correct)
        except WrongAnswer as error:
            return str(error)
        if any(predictions[a] != predictions[b] for a, b in self.twins):
            return "equal items of one batch were answered differently"
        return None


@dataclass(frozen=True, slots=True)
class ExpectedArray:
    """Expects a 200 with one array as bytes."""

    judge: Judge
    correct: CorrectAnswer | None
    media_type: str

    def problem(self, status: int, headers: Mapping[str, str], body: bytes) -> str | None:
        if (problem := _head_problem(status, headers, body, self.media_type)) is not None:
            return problem
        try:
            self.judge.check_values(self.judge.raw(self.media_type, body), self.correct)
        except WrongAnswer as error:
            return str(error)
        return None


@dataclass(frozen=True, slots=True)
class ExpectedError:
    """Expects an error for invalid input with this status and code, in the service's format."""

    status: int
    code: str

    def problem(self, status: int, headers: Mapping[str, str], body: bytes) -> str | None:
        if status in UNAVAILABLE:
            return failure(status, body)
        expected = f"{self.status} {self.code}"
        if status != self.status:
            return f"bad input was answered {status} instead of {expected}"
        media_type, error = headers.get("content-type", "").partition(";")[0], _object(body)
        if media_type != JSON or error is None or set(error) != ERROR_FIELDS or not error["error"]:
            return f"{status} {media_type} that is not {{{', '.join(sorted(ERROR_FIELDS))}}}"
        if error["code"] != self.code:
            return f"bad input was answered {status} {error['code']} instead of {expected}"
        return None


def failure(status: int, body: bytes) -> str:
    """Name an answer that is not 200 by status and code, with its message if it is a fault."""
    error = _object(body)
    if error is None or "code" not in error:
        return f"{status}: {body[:MAX_SHOWN_CHARACTERS].decode(errors='replace')}"
    if status in UNAVAILABLE:
        return f"{status} {error['code']}"
    return f"{status} {error['code']}: {str(error.get('error'))[:MAX_SHOWN_CHARACTERS]}"


def _head_problem(
    status: int, headers: Mapping[str, str], body: bytes, media_type: str
) -> str | None:
    if status != 200:
        return failure(status, body)
    if headers.get("content-type") != media_type:
        return f"Content-Type {headers.get('content-type')!r} instead of {media_type}"
    return None


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return answer if isinstance(answer, dict) else None
