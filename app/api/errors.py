"""The table from error class to status, and the shape of every error answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

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
    errors.InvalidInput: 422,
    errors.UnsupportedMediaType: 415,
    errors.UnsupportedContentCoding: 415,
    errors.NotAcceptable: 406,
    errors.PayloadTooLarge: 413,
    errors.ModelNotFound: 404,
    errors.Abandoned: 499,  # never read; nginx's number, for metrics and logs
    errors.Overloaded: 503,
    errors.ModelNotReady: 503,
    errors.ShuttingDown: 503,
    errors.DeadlineExceeded: 504,
    errors.BackendFailed: 500,
    errors.NonFiniteOutput: 500,
    errors.ArtifactInvalid: 500,
}
INTERNAL_MESSAGE = "internal error; the server's log has this request's id"
REQUEST_ID = "torchlane.request_id"  # keys in the ASGI scope
ACCEPTED_CODINGS = "gzip, deflate"  # of request bodies, see codings.py
OUTCOME = "torchlane.outcome"
ROUTE = "torchlane.route"
# The connection closes after these. A draining server sends the client elsewhere; after the others
# the start of the next request is unknown.
LAST_ANSWERS = (
    errors.ShuttingDown,
    errors.MalformedRequest,
    errors.HttpVersionNotSupported,
    errors.NotImplementedInHttp,
    errors.HeadTooLarge,
    errors.HeadLate,
)
NOTHING_MORE: Mapping[str, float] = MappingProxyType({})


RawAnswer = tuple[int, list[tuple[bytes, bytes]], bytes]  # status, headers, body


def error_answer(scope: Scope, error: errors.TorchlaneError) -> RawAnswer:
    """Status, headers and body of an error.

    Raises:
        TorchlaneError: the error itself, if the table lacks it: that is a bug.
    """
    status = STATUS.get(type(error))
    if status is None:
        raise error
    headers = [(b"content-type", b"application/json")]
    more: dict[str, float] = {}
    if isinstance(error, errors.Unauthorized):  # RFC 6750
        known = b', error="invalid_token"' if error.wrong_key else b""
        headers.append((b"www-authenticate", b'Bearer realm="torchlane"' + known))
    if isinstance(error, errors.UnsupportedContentCoding):
        headers.append((b"accept-encoding", ACCEPTED_CODINGS.encode()))
    if isinstance(error, errors.RetryLater):
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after_s))))
        more["retry_after_ms"] = round(error.retry_after_s * 1000, 1)
    if isinstance(error, LAST_ANSWERS):
        headers.append((b"connection", b"close"))
    content = error_body(scope, error.code, str(error), error.details, more)
    headers.append((b"content-length", b"%d" % len(content)))
    return status, headers, content


def error_body(
    scope: Scope,
    code: str,
    message: str,
    details: Sequence[errors.Detail] = (),
    more: Mapping[str, float] = NOTHING_MORE,
) -> bytes:
    """An error in the common shape; its code is put into the scope for the metrics.

    Args:
        scope: of the request.
        code: for programs.
        message: for people.
        details: such as which item is wrong.
        more: fields that only this error has.
    """
    scope[OUTCOME] = code
    return orjson.dumps(
        {
            "error": message,
            "code": code,
            "request_id": scope.get(REQUEST_ID, ""),
            "details": details,
            **more,
        }
    )
