"""What Schemathesis cannot know: which of its findings the requests themselves asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import schemathesis
from schemathesis.core.failures import Failure, ServerError
from schemathesis.core.transport import Response
from schemathesis.openapi.checks import RejectedPositiveData

JSON = "application/json"
TIMEOUT = "X-Torchlane-Timeout-Ms"
NAMED = "/models/{name}"
TOO_LATE = (503, 504)  # refused because it could not be in time, and out of time
LARGE = 1e30  # of such numbers a model of float32 makes infinity, and says so


@schemathesis.hook
def filter_failure(
    context: schemathesis.HookContext,
    failure: Failure,
    case: schemathesis.Case[Any],
    response: Response,
) -> bool:
    """Whether it is a finding."""
    if isinstance(failure, ServerError):
        if response.status_code in TOO_LATE:
            return TIMEOUT not in (case.headers or {})
        infinite = b'"code":"non_finite_output"' in response.content
        return not (infinite and any(abs(each) > LARGE for each in _numbers(case.body)))
    if isinstance(failure, RejectedPositiveData):
        return not _beyond_json_schema(case)
    return True


def _beyond_json_schema(case: schemathesis.Case[Any]) -> bool:
    """Whether JSON Schema cannot tell if the body is valid: it is not JSON, or holds a picture.

    Nor can one document, for whatever model a path may name.
    """
    if case.method != "POST":
        return False
    if case.operation.path.startswith(NAMED) or case.media_type != JSON:
        return True
    body = case.body if isinstance(case.body, dict) else {}
    many = body.get("inputs")
    items = [body.get("input"), *(many if isinstance(many, list) else [])]
    return any(isinstance(item, str) for item in items)


def _numbers(body: Any) -> Iterator[float]:
    if isinstance(body, int | float):
        yield body
    elif isinstance(body, dict | list):
        for each in body.values() if isinstance(body, dict) else body:
            yield from _numbers(each)
