"""Expectations for answers to valid input; for invalid input see `calls.Refused`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from loadtests.traffic.answers import Judge, Known
from loadtests.traffic.calls import JSON, failure


@dataclass(frozen=True, slots=True)
class Predictions:
    """Expects a 200 in JSON with these predictions in order; see `calls.Expectation`.

    Attributes:
        known: the correct answers; None if only the form can be checked.
        many: whether the call was /batch-predict.
        twins: indices of equal items, whose answers must be equal.
    """

    judge: Judge
    known: Sequence[Known | None]
    many: bool = False
    twins: Sequence[tuple[int, int]] = ()

    def problem(self, status: int, headers: Mapping[str, str], body: bytes) -> str | None:
        """See `Expectation`."""
        if status != 200:
            return failure(status, body)
        if headers.get("content-type") != JSON:
            return f"Content-Type {headers.get('content-type')!r} instead of {JSON}"
        field = "predictions" if self.many else "prediction"
        answer = _parsed(body)
        if answer is None or answer.keys() != {"model", "version", field}:
            return f"200 with a body that is not {{model, version, {field}}}"
        got = answer[field] if self.many else [answer[field]]
        return self.judge.head_problem(answer) or self._wrong(got)

    def _wrong(self, got: object) -> str | None:
        if not isinstance(got, list) or len(got) != len(self.known):
            count = len(got) if isinstance(got, list) else "no"
            return f"{count} predictions for {len(self.known)} items"
        for one, known in zip(got, self.known, strict=True):
            problem = self.judge.problem(one, known)
            if problem is not None:
                return problem
        if any(got[a] != got[b] for a, b in self.twins):
            return "equal items of one batch were answered differently"
        return None


@dataclass(frozen=True, slots=True)
class RawPrediction:
    """Expects a 200 with one array as bytes; see `calls.Expectation`."""

    judge: Judge
    known: Known | None
    media_type: str

    def problem(self, status: int, headers: Mapping[str, str], body: bytes) -> str | None:
        """See `Expectation`."""
        if status != 200:
            return failure(status, body)
        if headers.get("content-type") != self.media_type:
            return f"Content-Type {headers.get('content-type')!r} instead of {self.media_type}"
        return self.judge.raw_problem(self.media_type, body, self.known)


def _parsed(body: bytes) -> dict[str, Any] | None:
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return answer if isinstance(answer, dict) else None
