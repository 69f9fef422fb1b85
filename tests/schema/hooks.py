"""What Schemathesis cannot know: which of its findings the requests themselves asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import schemathesis
from schemathesis.core.failures import Failure, ServerError
from schemathesis.core.transport import Response
from schemathesis.openapi.checks import (
    AllowHeaderMismatch,
    RejectedPositiveData,
    UnsupportedMethodResponse,
)

JSON = "application/json"
TIMEOUT = "X-Torchlane-Timeout-Ms"
NAMED = ("/models/{name}", "/v2/models/{name}", "/predictions/{name}")
TEXT = ("/v1/embeddings", "/embed", "/rerank", "/classify")  # whose bodies name the model
ROOT = "/"  # also the page, for GET, which the document leaves out
PLATFORMS = ("/v1/models/", "/invocations")
TOO_LATE = (b'"code":"overloaded"', b'"code":"deadline_exceeded"')  # 503 and 504
SHORT_MS = 1000.0  # with more time, an idle server that is late is a finding
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
        path = case.operation.path
        native = path != ROOT and not path.startswith(NAMED[1:] + TEXT + PLATFORMS)
        if any(code in response.content for code in TOO_LATE) or (
            not native and response.status_code in (503, 504)
        ):
            return not _short_of_time(case)
        infinite = b'"code":"non_finite_output"' in response.content
        return not (infinite and any(abs(each) > LARGE for each in _numbers(case.body)))
    if isinstance(failure, AllowHeaderMismatch | UnsupportedMethodResponse):
        return bool(case.operation.path != ROOT)
    if isinstance(failure, RejectedPositiveData):
        return response.status_code not in _beyond_the_document(case)
    return True


def _short_of_time(case: schemathesis.Case[Any]) -> bool:
    """Whether the request asked for an answer sooner than can be demanded: no check can know."""
    headers: Mapping[str, Any] = case.headers or {}
    try:
        return 0 < float(headers.get(TIMEOUT, math.inf)) < SHORT_MS
    except ValueError:
        return False


def _beyond_the_document(case: schemathesis.Case[Any]) -> tuple[int, ...]:
    """The statuses for bodies of which it cannot tell whether they are valid.

    - For whatever model a path or a body names it has one schema of items, and one list of media
      types.
    - Raw bytes and files must have the size, or be of the format, that the model takes.
    - A picture in JSON is base64 of a PNG, a JPEG, a WebP or a GIF file.
    - `partial` is not for binary bodies.
    """
    if case.method not in ("POST", "PUT"):
        return ()
    path = case.operation.path
    if path == ROOT or path.startswith(NAMED + TEXT + PLATFORMS):
        return (400, 415, 422)
    if case.media_type != JSON:
        return (400, 422) if "partial" in (case.query or {}) else (422,)
    body = case.body if isinstance(case.body, dict) else {}
    many = body.get("inputs")
    items = [body.get("input"), *(many if isinstance(many, list) else [])]
    return (422,) if any(isinstance(item, str) for item in items) else ()


def _numbers(body: Any) -> Iterator[float]:
    if isinstance(body, int | float):
        yield body
    elif isinstance(body, dict | list):
        for each in body.values() if isinstance(body, dict) else body:
            yield from _numbers(each)
