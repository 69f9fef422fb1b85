"""The parameters of requests and the headers of answers, for the OpenAPI document."""

from __future__ import annotations

from app.api.dialect import Docs
from app.api.request_ids import WELL_FORMED

# On every answer.
REQUEST_ID: Docs = {
    "X-Request-Id": {
        "description": "the request's id: the client's if well formed, else a new one",
        "required": True,
        "schema": {"type": "string", "pattern": f"^{WELL_FORMED.pattern.decode()}$"},
    }
}
RETRY_AFTER: Docs = {
    "Retry-After": {
        "description": "whole seconds; `retry_after_ms` in the body is exact",
        "schema": {"type": "integer", "minimum": 1},
    }
}
CHALLENGE: Docs = {
    "WWW-Authenticate": {
        "description": "how to send a key, and whether a key was sent",
        "required": True,
        "schema": {"type": "string", "pattern": "^Bearer realm="},
    }
}
_MS = r"[0-9]+\.[0-9]{3}"
_TIMING: Docs = {
    "Server-Timing": {
        "description": "decode, queue, compute and encode times in milliseconds, and the size of "
        "the largest batch that an item ran in, if any",
        "required": True,
        "schema": {
            "type": "string",
            "pattern": f"^decode;dur={_MS}, queue;dur={_MS}, compute;dur={_MS}, encode;dur={_MS}"
            r"(, batch;desc=\d+)?$",
        },
    }
}
VERSION: Docs = {
    "X-Torchlane-Version": {
        "description": "the version that answers, or fails, if the models file gives versions "
        "weights and the request names none",
        "schema": {"type": "integer", "minimum": 1},
    }
}
_PARAMETERS: Docs = {
    "X-Request-Id": (
        {"type": "string"},
        "an id that identifies this request; returned in the answer",
    ),
    "X-Torchlane-Timeout-Ms": (
        {"type": "number", "exclusiveMinimum": 0},
        "milliseconds until the deadline: a late request gets 504, or 503 if that is foreseen",
    ),
}


def answered(*, many: bool) -> Docs:
    """The headers of a prediction's answer."""
    counts = "hit=[0-9]+, miss=[0-9]+, joined=[0-9]+"
    cache = {
        "description": "whether the answer is from a cache, computed, or shared with an equal item"
        + ("; counts of each" if many else ""),
        "required": True,
        "schema": {"type": "string", "pattern": f"^({counts if many else 'hit|miss|joined'})$"},
    }
    return {**REQUEST_ID, "X-Torchlane-Cache": cache, **VERSION, **_TIMING}


TOP_K: Docs = {
    "name": "top_k",
    "in": "query",
    "required": False,
    "description": "return only a classifier's highest scores, at most this many, in descending "
    "order; JSON only",
    "schema": {"type": "integer", "minimum": 1},
}


PICTURES: Docs = {
    "name": "pictures",
    "in": "query",
    "required": False,
    "description": "return outputs that are declared as pictures as PNG files in base64 instead of "
    "numbers; JSON only",
    "schema": {"type": "string", "enum": ["base64"]},
}


PARTIAL: Docs = {
    "name": "partial",
    "in": "query",
    "required": False,
    "description": "answer the other items if some are invalid or fail: each has its error in its "
    "place, `failed` is the number of failed items, and the status stays 200, even if all "
    "failed; for JSON and forms, and answers in JSON",
    "schema": {"type": "boolean", "default": False},
}


def parameters(*, native: bool = True, many: bool = False) -> list[Docs]:
    """The parameters of a prediction request."""
    own = [TOP_K, PICTURES, *([PARTIAL] if many else [])] if native else []
    return own + [
        {"name": name, "in": "header", "required": False, "description": text, "schema": schema}
        for name, (schema, text) in _PARAMETERS.items()
    ]


def path_parameters(path: str) -> list[Docs]:
    """The parameters in the path of a model's call."""
    found = [path_parameter("name", {"type": "string"})] if "{name}" in path else []
    if "{version}" in path:
        found.append(path_parameter("version", {"type": "integer", "minimum": 1}))
    return found


def path_parameter(name: str, schema: Docs) -> Docs:
    """A path parameter that is hidden from FastAPI, which would add a 422 that never occurs."""
    return {"name": name, "in": "path", "required": True, "schema": schema}
