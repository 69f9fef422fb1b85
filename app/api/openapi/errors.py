"""The errors of each protocol, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.api.openapi import schemas
from app.api.openapi.headers import CHALLENGE, RETRY_AFTER, Docs
from app.codecs.base import JSON

Responses = dict[int | str, dict[str, Any]]

DESCRIPTIONS = {
    400: "The URL has a query parameter that this call does not have",
    401: "The API key is missing or unknown",
    403: "The API key does not allow this",
    404: "No such model or version",
    406: "The answer cannot be written in a format that Accept allows",
    413: "The body or the number of items is over the limit",
    415: "The model does not read this Content-Type",
    422: "The input does not fit the model; `details` names the item",
    429: "The caller's rate limit is reached (with Retry-After); retry later",
    500: "The model failed on the input",
    503: "Overloaded (with Retry-After), loading, or shutting down; retry later",
    504: "The request's deadline has passed",
}
ERRORS: dict[int, Responses] = {
    status: {status: {"model": schemas.ErrorBody, "description": text}}
    for status, text in DESCRIPTIONS.items()
}
V2 = "open inference protocol"  # tag of its calls
V2_ERRORS: dict[int, Responses] = {
    status: {status: {"model": schemas.V2Error, "description": text}}
    for status, text in {
        **DESCRIPTIONS,
        400: "The request does not fit the model, or has an unknown query parameter",
    }.items()
}
TORCHSERVE = "torchserve"  # tag of its calls
TEXT = "text"  # tag of the calls for text
ERROR_SCHEMAS = {
    "native": "ErrorBody",
    "oip": "V2Error",
    "torchserve": "TorchServeError",
    "openai": "OpenAIError",
    "tei": "TEIError",
}


def error_of(protocol: str, description: str) -> dict[str, Any]:
    """An error answer in the shape of a protocol."""
    schema = {"$ref": f"#/components/schemas/{ERROR_SCHEMAS[protocol]}"}
    return {"content": {JSON: {"schema": schema}}, "description": description}


def _errors_of(protocol: str) -> dict[int, Responses]:
    return {
        status: {status: error_of(protocol, found[status]["description"])}
        for status, found in V2_ERRORS.items()
    }


TORCHSERVE_ERRORS, OPENAI_ERRORS = _errors_of("torchserve"), _errors_of("openai")
TEI_ERRORS = _errors_of("tei")
ACCESS_HEADERS: dict[int, Docs] = {401: CHALLENGE, 403: {}, 429: RETRY_AFTER}  # of rejections


def prediction_errors(errors: dict[int, Responses], without: Sequence[int] = ()) -> Responses:
    """Every error of a prediction call, except access errors, which the document adds."""
    left = errors.keys() - ACCESS_HEADERS.keys() - set(without)
    return {status: errors[status][status] for status in sorted(left)}
