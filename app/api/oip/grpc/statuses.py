"""The table from errors to gRPC statuses, and the answers of failed calls."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import grpc
import structlog
from grpc.aio import BaseError

from app import errors
from app.api.errors import INTERNAL_MESSAGE
from app.api.oip.grpc.wire import number_written, written
from app.api.oip.openapi import FORM
from app.telemetry.tracing import RequestTrace

LOG = structlog.get_logger(__name__)

CODES: Mapping[int, grpc.StatusCode] = {  # by HTTP status
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    406: grpc.StatusCode.INVALID_ARGUMENT,
    413: grpc.StatusCode.INVALID_ARGUMENT,  # a retry changes nothing
    415: grpc.StatusCode.INVALID_ARGUMENT,
    499: grpc.StatusCode.CANCELLED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
MAX_DETAILS = 2000  # characters of a message: clients accept 8 KB of metadata, percent-encoded
REQUEST_ID = "x-request-id"
Metadata = tuple[tuple[str, str | bytes], ...]


class Refusal(NamedTuple):
    """The end of a failed call.

    Attributes:
        status: HTTP status, for the metrics.
        outcome: the error's code, for the metrics.
        code: gRPC status.
        details: a sentence for people.
        metadata: trailing metadata: the request's id, and when to try again.
    """

    status: int
    outcome: str
    code: grpc.StatusCode
    details: str
    metadata: Metadata


def refusal_of(error: Exception, request_id: str, record: RequestTrace | None = None) -> Refusal:
    """The refusal for an error, which its record keeps; an error not in the table is logged."""
    refusal = _refused(error, request_id, {} if record is None else record.log_ids())
    if record is not None:
        record.error, record.rpc_status = error, refusal.code.name
    return refusal


def _refused(error: Exception, request_id: str, ids: Mapping[str, str]) -> Refusal:
    status = FORM.status_of(error) if isinstance(error, errors.TorchlaneError) else None
    if status is None or not isinstance(error, errors.TorchlaneError):
        LOG.error("unhandled_error", exc_info=error, request_id=request_id, **ids)
        code = grpc.StatusCode.INTERNAL
        return Refusal(500, "internal", code, INTERNAL_MESSAGE, ((REQUEST_ID, request_id),))
    code, details = CODES.get(status, grpc.StatusCode.INTERNAL), str(error)[:MAX_DETAILS]
    more: Metadata = ()
    if isinstance(error, errors.RetryLater):
        code = grpc.StatusCode.RESOURCE_EXHAUSTED
        more = _retry(code, details, error.retry_after_s)
    return Refusal(status, error.code, code, details, ((REQUEST_ID, request_id), *more))


def _retry(code: grpc.StatusCode, details: str, after_s: float) -> Metadata:
    """When to try again: as google.rpc.RetryInfo in a google.rpc.Status, and as a number."""
    seconds, fraction = divmod(after_s, 1)
    delay = number_written(1, int(seconds)) + number_written(2, int(fraction * 1e9))
    info = written(1, b"type.googleapis.com/google.rpc.RetryInfo") + written(2, written(1, delay))
    number: int = code.value[0]
    status = number_written(1, number) + written(2, details.encode()) + written(3, info)
    return (
        ("grpc-status-details-bin", status),
        ("retry-after-ms", str(max(1, math.ceil(after_s * 1000)))),
    )


async def ended(
    context: Any, code: grpc.StatusCode, details: str, metadata: Sequence[tuple[str, Any]] = ()
) -> None:
    """End a call from outside its handler."""
    try:
        await context.abort(code, details, metadata)
    except BaseError as error:  # `abort` always raises; or the client disconnected
        error.with_traceback(None)  # the call keeps the error, whose frames keep the call
