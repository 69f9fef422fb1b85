"""TorchServe's protocol: predictions and ping."""

from __future__ import annotations

from app.api.dialect import Dialect, Docs, Operations
from app.api.endpoints import Endpoint
from app.api.errors import ErrorForm, Failure
from app.api.openapi.bodies import ANY_ITEM, BINARY, FILE
from app.api.openapi.errors import errors_of, operation, prediction_errors, suffix_of
from app.api.openapi.headers import answered, parameters, path_parameters
from app.api.probes import add_probe
from app.api.torchserve.predictions import ENDPOINTS
from app.codecs.base import JSON, OCTET_STREAM
from app.errors import InvalidInput

TAG, ERROR = "torchserve", "TorchServeError"
# TorchServe names the Java class of an error; its clients read the status.
TYPES = {
    401: "InvalidKeyException",
    403: "InvalidKeyException",
    404: "ResourceNotFoundException",
    405: "MethodNotAllowedException",
    413: "RequestEntityTooLargeException",
    503: "ServiceUnavailableException",
}
CALLER_TYPE, INTERNAL_TYPE = "BadRequestException", "InternalServerException"
SCHEMAS: dict[str, Docs] = {
    ERROR: {
        "type": "object",
        "properties": {
            "code": {"type": "integer", "description": "the status"},
            "type": {"type": "string"},
            "message": {"type": "string"},
        },
        "required": ["code", "type", "message"],
        "additionalProperties": False,
    },
}
FORM: Docs = {
    "type": "object",
    "properties": {"data": {**FILE, "minLength": 1}},
    "required": ["data"],
    "additionalProperties": False,
}


def error_body(failure: Failure) -> object:
    """The body of an error."""
    other = CALLER_TYPE if failure.status < 500 else INTERNAL_TYPE
    kind = TYPES.get(failure.status, other)
    return {"code": failure.status, "type": kind, "message": failure.message}


def operations(endpoint: Endpoint) -> list[Docs]:
    """See `Operations`; PUT is for `curl -T`."""
    ok: Docs = {
        "description": "The five best labels and their scores; without labels, the output",
        "content": {JSON: {"schema": {}}},
        "headers": answered(many=False),
    }
    content = {
        JSON: {"schema": ANY_ITEM},
        OCTET_STREAM: BINARY,
        "multipart/form-data": {"schema": FORM},
    }
    docs = operation(
        f"predictions{suffix_of(endpoint.route)}",
        "One input, in TorchServe's format.",
        TAG,
        {200: ok, **prediction_errors(errors_of(ERROR), without=(422,))},
        body={"content": content},
        parameters=[*parameters(native=False), *path_parameters(endpoint.route)],
    )
    return [docs, {**docs, "name": f"{docs['name']}_put", "methods": ["PUT"]}]


TORCHSERVE = Dialect(
    endpoints=lambda: ENDPOINTS,
    errors=ErrorForm(error_body, {InvalidInput: 400}),
    docs=Operations(TAG, ERROR, operations, SCHEMAS),
    roots=("predictions", "ping"),
    add_routes=lambda app, service: add_probe(app, service, "/ping", "ping"),
    probes=("/ping",),
)
