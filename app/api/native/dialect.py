"""The native protocol."""

from __future__ import annotations

from app.api.dialect import Dialect
from app.api.errors import ErrorForm, Failure
from app.api.native.models import add_models
from app.api.native.openapi import OPERATIONS
from app.api.native.predictions import ENDPOINTS


def error_body(failure: Failure) -> object:
    """The body of an error."""
    content: dict[str, object] = {
        "error": failure.message,
        "code": failure.code,
        "request_id": failure.request_id,
        "details": failure.details,
    }
    if failure.retry_after_ms is not None:
        content["retry_after_ms"] = failure.retry_after_ms
    return content


NATIVE = Dialect(
    endpoints=lambda: ENDPOINTS,
    errors=ErrorForm(error_body, {}),
    docs=OPERATIONS,
    roots=("predict", "batch-predict", "models"),
    add_routes=add_models,
    probes=("/health/live", "/health/ready"),
    admin_paths=("/admin",),
)
