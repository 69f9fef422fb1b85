"""Errors in the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.api.dialect import Docs
from app.api.openapi.headers import CHALLENGE, RETRY_AFTER, VERSION
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
# Of protocols that answer an invalid input with 400.
INVALID = {400: "The request does not fit the model, or has an unknown query parameter"}
ACCESS_HEADERS: dict[int, Docs] = {401: CHALLENGE, 403: {}, 429: RETRY_AFTER}  # of rejections


def error_of(schema: str, description: str) -> dict[str, Any]:
    """An error answer with a schema of this name."""
    content = {JSON: {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    return {"content": content, "description": description}


def errors_of(schema: str, other: Mapping[int, str] = INVALID) -> dict[int, Responses]:
    """Every error of a protocol by status; `other` are descriptions that differ."""
    return {
        status: {status: error_of(schema, text)}
        for status, text in {**DESCRIPTIONS, **other}.items()
    }


ERRORS = errors_of("ErrorBody", {})


def prediction_errors(errors: dict[int, Responses], without: Sequence[int] = ()) -> Responses:
    """Every error of a prediction call, except access errors, which the document adds."""
    left = errors.keys() - ACCESS_HEADERS.keys() - set(without)
    found: Responses = {
        status: {**errors[status][status], "headers": VERSION} for status in sorted(left)
    }
    found[503]["headers"] = {**RETRY_AFTER, **VERSION}
    return found


def operation(
    name: str,
    description: str,
    tag: str,
    responses: Responses,
    *,
    body: Docs,
    parameters: Sequence[Docs],
) -> Docs:
    """The arguments of an `APIRoute` that describe a prediction call, by POST."""
    return {
        "name": name,
        "description": description,
        "tags": [tag],
        "responses": responses,
        "methods": ["POST"],
        "openapi_extra": {"requestBody": {"required": True, **body}, "parameters": parameters},
    }


def suffix_of(route: str) -> str:
    """What the name of an operation has in addition if its path names a version."""
    return "_by_version" if "{version}" in route else ""
