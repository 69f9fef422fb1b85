"""The protocols for text: OpenAI's, with infinity's embeddings, and text-embeddings-inference's."""

from __future__ import annotations

from app.api.dialect import Dialect
from app.api.errors import ErrorForm, Failure
from app.api.text import classify, embeddings, rerank, root
from app.api.text.info import add_info
from app.api.text.models import add_openai_models
from app.api.text.openapi import OPENAI_OPERATIONS, TEI_OPERATIONS
from app.errors import BackendFailed, InvalidInput, NonFiniteOutput, Overloaded

# OpenAI's codes, where they differ from ours.
OPENAI_CODES = {"unauthorized": "invalid_api_key", "rate_limited": "rate_limit_exceeded"}
OPENAI_TYPES = {403: "permission_error", 429: "rate_limit_error"}
TEI_TYPES = {
    "overloaded": "Overloaded",
    "rate_limited": "Overloaded",
    "model_not_ready": "Unhealthy",
    "shutting_down": "Unhealthy",
}


def openai_error(failure: Failure) -> object:
    """The body of an error in OpenAI's protocol."""
    kind = "server_error" if failure.status >= 500 else "invalid_request_error"
    error = {
        "message": failure.message,
        "type": OPENAI_TYPES.get(failure.status, kind),
        "param": failure.details[0].get("param") if failure.details else None,
        "code": OPENAI_CODES.get(failure.code, failure.code),
    }
    return {"error": error}


def tei_error(failure: Failure) -> object:
    """The body of an error of text-embeddings-inference."""
    other = "Backend" if failure.status >= 500 or failure.status == 424 else "Validation"
    return {"error": failure.message, "error_type": TEI_TYPES.get(failure.code, other)}


OPENAI = Dialect(
    endpoints=lambda: embeddings.OPENAI_ENDPOINTS,
    errors=ErrorForm(openai_error, {InvalidInput: 400}),
    docs=OPENAI_OPERATIONS,
    roots=("v1", "embeddings"),
    add_routes=add_openai_models,
)
TEI = Dialect(
    endpoints=lambda: (
        *embeddings.TEI_ENDPOINTS,
        *rerank.ENDPOINTS,
        *classify.ENDPOINTS,
        *root.ENDPOINTS,
    ),
    errors=ErrorForm(tei_error, {Overloaded: 429, BackendFailed: 424, NonFiniteOutput: 424}),
    docs=TEI_OPERATIONS,
    roots=("embed", "rerank", "classify", "info"),
    add_routes=add_info,
)
