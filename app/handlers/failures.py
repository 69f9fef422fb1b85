"""Failures that the process of a handler reports: as errors of the server, and in its log."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from app import errors
from app.handlers.contract import FAILED
from app.telemetry.line_rate import LineRate

LOG = structlog.get_logger(__name__)
LINES, LINES_PER_S = 20, 5.0  # of failures in the log

NO_REASON = "the handler gave no reason"
MAX_TEXT = 4000  # characters of a message
MAX_DETAILS = 20
DEFAULT_RETRY_S = 1.0
MAX_WAIT_MS = 1e9

# Errors of a model that a handler did not catch reach its caller as they are, by code.
PASSED_ON: Mapping[str, type[errors.TorchlaneError]] = {
    kind.code: kind
    for kind in (
        *(errors.InvalidInput, errors.UnsupportedMediaType, errors.NotAcceptable),
        *(errors.PayloadTooLarge, errors.ModelNotFound, errors.Forbidden, errors.RateLimited),
        *(errors.Overloaded, errors.ModelNotReady, errors.DeadlineExceeded),
        *(errors.BackendFailed, errors.NonFiniteOutput, errors.HandlerDied, errors.HandlerMemory),
        *(errors.HandlerTimeout, errors.HandlerOutputs, errors.ShuttingDown),
    )
}


class FailureLog:
    """Logs failures of a handler's code, bounded in rate.

    Args:
        name: of the handler.
        version: of the handler.
    """

    def __init__(self, name: str, version: int) -> None:
        self._lines = LineRate(LINES, LINES_PER_S)
        self._labels: Mapping[str, object] = {"handler": name, "version": version}

    def log(self, request_id: str, meta: Mapping[str, Any]) -> None:
        """Log the answer to a request, unless its caller alone is at fault."""
        code = text_of(meta, "code")
        is_told = code in PASSED_ON and code != errors.HandlerOutputs.code
        if not is_told and self._lines.allows(time.monotonic()):
            LOG.warning(
                "handler_failed",
                **self._labels,
                request_id=request_id,
                reason=text_of(meta, "error"),
                where=text_of(meta, "where"),
                not_logged=self._lines.take_left_out(),
            )


def error_of(meta: Mapping[str, Any]) -> errors.TorchlaneError:
    """The error of an answer that says that a request failed.

    Args:
        meta: of the answer; nothing in it is trusted.
    """
    message = text_of(meta, "error") or NO_REASON
    kind = PASSED_ON.get(text_of(meta, "code"))
    if kind is None:
        return errors.HandlerFailed(FAILED, message)
    if issubclass(kind, errors.RetryLater):
        wait_ms = meta.get("retry_after_ms")
        if isinstance(wait_ms, int | float) and 0 <= wait_ms < MAX_WAIT_MS:
            return kind(message, wait_ms / 1000)
        return kind(message, DEFAULT_RETRY_S)
    return kind(message, _details(meta.get("details")))


def text_of(meta: Mapping[str, Any], name: str) -> str:
    """A field of a frame's meta, bounded; empty if it is not a text."""
    value = meta.get(name)
    return value[:MAX_TEXT] if isinstance(value, str) else ""


def _details(value: object) -> Sequence[errors.Detail]:
    if not isinstance(value, list):
        return ()
    return [
        {
            name[:MAX_TEXT]: each[:MAX_TEXT] if isinstance(each, str) else each
            for name, each in detail.items()
            if isinstance(each, str | int | float)
        }
        for detail in value[:MAX_DETAILS]
        if isinstance(detail, dict)
    ]
