"""The OpenAPI document of the prediction routes: true for every body, answer and error.

The examples are those of the default model, so that what is pasted works; hence the document is
made when it is asked for.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from app.api import schemas
from app.api.payloads import JSON
from app.api.service import Service
from app.codecs.base import NPY, OCTET_STREAM
from app.codecs.image import PICTURES
from app.errors import TorchlaneError

Docs = dict[str, Any]
Responses = dict[int | str, dict[str, Any]]

_DESCRIPTIONS = {
    404: "No such model, or not this version of it",
    406: "The answer cannot be written as Accept asks",
    413: "The body or the number of items is over the limit",
    415: "The model does not read this Content-Type",
    422: "The input is not what the model takes; `details` names the item",
    500: "The model failed on the input",
    503: "Overloaded (with Retry-After), loading, or shutting down; worth a retry",
    504: "The time that the request had was over",
}
ERRORS: dict[int, Responses] = {
    status: {status: {"model": schemas.ErrorBody, "description": text}}
    for status, text in _DESCRIPTIONS.items()
}
_BINARY: Docs = {"schema": {"type": "string", "format": "binary"}}
_ANSWER_HEADERS = {
    "X-Request-Id": "the request's id: the client's if well formed, else a new one",
    "X-Torchlane-Cache": "hit, miss or joined; for a batch how many of each",
    "Server-Timing": "decode, queue, compute and encode in milliseconds",
}
_REQUEST_HEADERS = {
    "X-Request-Id": ("string", "an id to find this request by; comes back in the answer"),
    "X-Torchlane-Timeout-Ms": ("number", "milliseconds after which the answer is not wanted"),
}


def prediction_docs(path: str, *, many: bool) -> Docs:
    """Keyword arguments for an `APIRoute` that describe a prediction route."""
    answer = schemas.BatchPredictAnswer if many else schemas.PredictAnswer
    ok: Docs = {
        "model": answer,
        "description": "The predictions" if many else "The prediction",
        "content": {OCTET_STREAM: _BINARY, NPY: _BINARY},
        "headers": {
            name: {"description": text, "schema": {"type": "string"}}
            for name, text in _ANSWER_HEADERS.items()
        },
    }
    responses: Responses = {200: ok}
    for each in ERRORS.values():
        responses.update(each)
    parameters = [
        {
            "name": name,
            "in": "header",
            "required": False,
            "description": text,
            "schema": {"type": kind},
        }
        for name, (kind, text) in _REQUEST_HEADERS.items()
    ]
    if "{name}" in path:
        parameters.append(_path_parameter("name", "string"))
    if "{version}" in path:
        parameters.append(_path_parameter("version", "integer"))
    return {
        "responses": responses,
        "openapi_extra": {"requestBody": _request_body(many=many), "parameters": parameters},
    }


def install_openapi(app: FastAPI, service: Service) -> None:
    """Make the document when it is asked for, with the default model's example, if it has one."""

    def document() -> Docs:
        made = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        try:
            example = service.loaded.resolve().manifest.example
        except TorchlaneError:
            return made  # nothing is loaded yet: the document is true, only without examples
        if example is None:
            return made  # too large to show
        for path, methods in made["paths"].items():
            if path.endswith("predict"):
                body = {"inputs": [example, example]} if "batch" in path else {"input": example}
                methods["post"]["requestBody"]["content"][JSON]["example"] = body
        return made

    app.openapi = document  # type: ignore[method-assign]  # the way FastAPI documents


def _request_body(*, many: bool) -> Docs:
    item = {
        "description": "One item: numbers, nested or flat; a base64 picture; an object by name",
        "anyOf": [
            {"type": "array", "items": {}},
            {"type": "string"},
            {"type": "object", "additionalProperties": True},
            {"type": "number"},
        ],
    }
    name = "inputs" if many else "input"
    value = {"type": "array", "items": item, "minItems": 1} if many else item
    schema = {
        "type": "object",
        "properties": {name: value},
        "required": [name],
        "additionalProperties": False,
    }
    raw = dict.fromkeys((OCTET_STREAM, NPY, *PICTURES), _BINARY)
    return {"required": True, "content": {JSON: {"schema": schema}, **raw}}


def _path_parameter(name: str, kind: str) -> Docs:
    return {"name": name, "in": "path", "required": True, "schema": {"type": kind}}
