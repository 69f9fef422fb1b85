"""The table from error class to status, and what the errors of all protocols have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import orjson
from starlette.types import Scope

from app import errors

STATUS: dict[type[errors.TorchlaneError], int] = {
    errors.MalformedRequest: 400,
    errors.HttpVersionNotSupported: 505,
    errors.NotImplementedInHttp: 501,
    errors.UntrustedHost: 400,
    errors.HeadLate: 408,
    errors.HeadTooLarge: 431,
    errors.Unauthorized: 401,
    errors.Forbidden: 403,
    errors.RateLimited: 429,
    errors.UnknownParameter: 400,
    errors.InvalidInput: 422,
    errors.UnsupportedMediaType: 415,
    errors.UnsupportedContentCoding: 415,
    errors.NotAcceptable: 406,
    errors.PayloadTooLarge: 413,
    errors.ModelNotFound: 404,
    errors.Abandoned: 499,  # never read; nginx's number, for metrics and logs
    errors.Overloaded: 503,
    errors.AlreadyRecording: 409,
    errors.ModelNotReady: 503,
    errors.NotRecorded: 503,
    errors.NotSaved: 503,
    errors.ShuttingDown: 503,
    errors.DeadlineExceeded: 504,
    errors.BackendFailed: 500,
    errors.NonFiniteOutput: 500,
    errors.InvalidItem: 422,
    errors.HandlerFailed: 500,
    errors.HandlerOutputs: 500,
    errors.HandlerDied: 500,
    errors.HandlerMemory: 500,
    errors.HandlerTimeout: 504,
    errors.ArtifactInvalid: 500,
}
INTERNAL_MESSAGE = "internal error; the server's log has this request's id"
REQUEST_ID = "torchlane.request_id"  # keys in the ASGI scope
FORM = "torchlane.error_form"  # the `ErrorForm` of the request's protocol
HEAD_ONLY = "torchlane.head_only"  # present if the answer's body will not be sent
TRANSPORT = "torchlane.transport"  # the connection's transport, if any
ACCEPTED_CODINGS = "gzip, deflate"  # of request bodies, see codings.py
# Of every answer to a prediction, for caches: other callers may get another one (RFC 9110, 12.5.5).
VARY = (b"vary", b"Accept, Accept-Encoding")
OUTCOME = "torchlane.outcome"
ROUTE = "torchlane.route"
TRACE = "torchlane.trace"
CALL = "torchlane.call"  # the `Call` of a prediction
CUT = "torchlane.cut"  # a list with a `Cut`, if the connection answers for the application
# The connection closes after these: a draining server sends the client elsewhere, and the other
# errors leave the start of the next request unknown.
LAST_ANSWERS = (
    errors.ShuttingDown,
    errors.MalformedRequest,
    errors.HttpVersionNotSupported,
    errors.NotImplementedInHttp,
    errors.HeadTooLarge,
    errors.HeadLate,
)


Cut = tuple[int, str, int]  # status and code of an answer, size of its body
RawAnswer = tuple[int, list[tuple[bytes, bytes]], bytes]  # status, headers, body


class Failure(NamedTuple):
    """What the body of an error may show.

    Attributes:
        status: the answer's status.
        code: for programs.
        message: for people.
        details: for example, which item is wrong.
        retry_after_ms: when to try again; None if the error does not say so.
        request_id: the request's id.
    """

    status: int
    code: str
    message: str
    details: Sequence[errors.Detail] = ()
    retry_after_ms: float | None = None
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class ErrorForm:
    """How a protocol writes errors.

    Attributes:
        body: the JSON of a failure.
        statuses: the statuses that differ from `STATUS`.
    """

    body: Callable[[Failure], object]
    statuses: Mapping[type[errors.TorchlaneError], int]

    def status_of(self, error: errors.TorchlaneError) -> int | None:
        """The status of an error; None if the table lacks it."""
        kind = type(error)
        return self.statuses.get(kind, STATUS.get(kind))


def error_answer(scope: Scope, error: errors.TorchlaneError) -> RawAnswer:
    """Status, headers and body of an error, in the scope's `FORM`.

    Raises:
        TorchlaneError: the error itself, if the table lacks it, which is a bug.
    """
    form: ErrorForm = scope[FORM]
    status = form.status_of(error)
    if status is None:
        raise error
    headers = [(b"content-type", b"application/json")]
    wait_ms: float | None = None
    if isinstance(error, errors.Unauthorized):  # RFC 6750
        known = b', error="invalid_token"' if error.wrong_key else b""
        headers.append((b"www-authenticate", b'Bearer realm="torchlane"' + known))
    if isinstance(error, errors.NotAcceptable):
        headers.append(VARY)
    if isinstance(error, errors.UnsupportedContentCoding):
        headers.append((b"accept-encoding", ACCEPTED_CODINGS.encode()))
    if isinstance(error, errors.RetryLater):
        wait_ms = round(error.retry_after_s * 1000, 1)
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after_s))))
        headers.append((b"retry-after-ms", b"%.1f" % wait_ms))  # OpenAI's clients read it
    if isinstance(error, LAST_ANSWERS):
        headers.append((b"connection", b"close"))
    content = error_body(scope, status, error.code, str(error), error.details, wait_ms)
    headers.append((b"content-length", b"%d" % len(content)))
    return status, headers, content


def error_body(
    scope: Scope,
    status: int,
    code: str,
    message: str,
    details: Sequence[errors.Detail] = (),
    retry_after_ms: float | None = None,
) -> bytes:
    """The body of an error in the scope's `FORM`; stores the code in the scope for the metrics.

    See `Failure` for the arguments.
    """
    scope[OUTCOME] = code
    form: ErrorForm = scope[FORM]
    request_id = scope.get(REQUEST_ID, "")
    failure = Failure(status, code, message, details, retry_after_ms, request_id)
    return orjson.dumps(form.body(failure))
