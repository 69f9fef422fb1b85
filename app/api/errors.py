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
    errors.ShuttingDown: 503,
    errors.DeadlineExceeded: 504,
    errors.BackendFailed: 500,
    errors.NonFiniteOutput: 500,
    errors.InvalidItem: 422,
    errors.ArtifactInvalid: 500,
}
INTERNAL_MESSAGE = "internal error; the server's log has this request's id"
REQUEST_ID = "torchlane.request_id"  # keys in the ASGI scope
HEAD_ONLY = "torchlane.head_only"  # present if the answer's body will not be sent
TRANSPORT = "torchlane.transport"  # the connection's transport, if any
ACCEPTED_CODINGS = "gzip, deflate"  # of request bodies, see codings.py
# Of every answer to a prediction, for caches: other callers may get another one (RFC 9110, 12.5.5).
VARY = (b"vary", b"Accept, Accept-Encoding")
OUTCOME = "torchlane.outcome"
ROUTE = "torchlane.route"
TRACE = "torchlane.trace"
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
NOTHING_MORE: Mapping[str, float] = MappingProxyType({})
# Statuses that differ in other protocols.
OTHER_STATUS: dict[str, dict[type[errors.TorchlaneError], int]] = {
    "oip": {errors.InvalidInput: 400},
    "torchserve": {errors.InvalidInput: 400},
    "openai": {errors.InvalidInput: 400},
    "tei": {errors.Overloaded: 429, errors.BackendFailed: 424, errors.NonFiniteOutput: 424},
}
# TorchServe names the Java class of an error; its clients read the status.
TORCHSERVE_TYPES = {
    401: "InvalidKeyException",
    403: "InvalidKeyException",
    404: "ResourceNotFoundException",
    405: "MethodNotAllowedException",
    413: "RequestEntityTooLargeException",
    503: "ServiceUnavailableException",
}
CALLER_TYPE, INTERNAL_TYPE = "BadRequestException", "InternalServerException"
# OpenAI's codes, where they differ from ours.
OPENAI_CODES = {"unauthorized": "invalid_api_key", "rate_limited": "rate_limit_exceeded"}
OPENAI_TYPES = {403: "permission_error", 429: "rate_limit_error"}
TEI_PATHS = frozenset(("/embed", "/rerank", "/classify"))
TEI_TYPES = {
    "overloaded": "Overloaded",
    "rate_limited": "Overloaded",
    "model_not_ready": "Unhealthy",
    "shutting_down": "Unhealthy",
}


RawAnswer = tuple[int, list[tuple[bytes, bytes]], bytes]  # status, headers, body


def protocol_of(path: str) -> str:
    """The protocol that shapes the errors of this path: a key of `OTHER_STATUS`, or `native`."""
    if path.startswith("/v2") and path[3:4] in ("", "/"):
        return "oip"
    if path.startswith("/predictions/") or path == "/ping":
        return "torchserve"
    if path.startswith("/v1/") or path == "/embeddings":
        return "openai"
    return "tei" if path in TEI_PATHS else "native"


def status_of(error: errors.TorchlaneError, protocol: str) -> int | None:
    """The status of an error in a protocol, see `protocol_of`; None if the table lacks it."""
    kind = type(error)
    return OTHER_STATUS.get(protocol, {}).get(kind, STATUS.get(kind))


def error_answer(scope: Scope, error: errors.TorchlaneError) -> RawAnswer:
    """Status, headers and body of an error, in the protocol of the scope's path.

    Raises:
        TorchlaneError: the error itself, if the table lacks it, which is a bug.
    """
    protocol = protocol_of(scope.get("path", ""))
    status = status_of(error, protocol)
    if status is None:
        raise error
    headers = [(b"content-type", b"application/json")]
    more: dict[str, float] = {}
    if isinstance(error, errors.Unauthorized):  # RFC 6750
        known = b', error="invalid_token"' if error.wrong_key else b""
        headers.append((b"www-authenticate", b'Bearer realm="torchlane"' + known))
    if isinstance(error, errors.NotAcceptable):
        headers.append(VARY)
    if isinstance(error, errors.UnsupportedContentCoding):
        headers.append((b"accept-encoding", ACCEPTED_CODINGS.encode()))
    if isinstance(error, errors.RetryLater):
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after_s))))
        more["retry_after_ms"] = wait_ms = round(error.retry_after_s * 1000, 1)
        if protocol == "openai":  # OpenAI's clients read it
            headers.append((b"retry-after-ms", b"%.1f" % wait_ms))
    if isinstance(error, LAST_ANSWERS):
        headers.append((b"connection", b"close"))
    content = error_body(scope, status, error.code, str(error), error.details, more)
    headers.append((b"content-length", b"%d" % len(content)))
    return status, headers, content


def error_body(
    scope: Scope,
    status: int,
    code: str,
    message: str,
    details: Sequence[errors.Detail] = (),
    more: Mapping[str, float] = NOTHING_MORE,
) -> bytes:
    """The body of an error in its protocol; stores the code in the scope for the metrics.

    Args:
        scope: the request's scope; its path determines the protocol.
        status: the answer's status.
        code: for programs.
        message: for people.
        details: for example, which item is wrong.
        more: fields that only this error has.
    """
    scope[OUTCOME] = code
    protocol = protocol_of(scope.get("path", ""))
    if protocol == "oip":
        return orjson.dumps({"error": message})
    if protocol == "torchserve":
        other = CALLER_TYPE if status < 500 else INTERNAL_TYPE
        kind = TORCHSERVE_TYPES.get(status, other)
        return orjson.dumps({"code": status, "type": kind, "message": message})
    if protocol == "openai":
        kind = "server_error" if status >= 500 else "invalid_request_error"
        error = {
            "message": message,
            "type": OPENAI_TYPES.get(status, kind),
            "param": details[0].get("param") if details else None,
            "code": OPENAI_CODES.get(code, code),
        }
        return orjson.dumps({"error": error})
    if protocol == "tei":
        other = "Backend" if status >= 500 or status == 424 else "Validation"
        return orjson.dumps({"error": message, "error_type": TEI_TYPES.get(code, other)})
    return orjson.dumps(
        {
            "error": message,
            "code": code,
            "request_id": scope.get(REQUEST_ID, ""),
            "details": details,
            **more,
        }
    )
