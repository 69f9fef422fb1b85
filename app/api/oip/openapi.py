"""The errors of the Open Inference Protocol, and its part of the OpenAPI document."""

from __future__ import annotations

from app.api.dialect import Docs, Operations
from app.api.endpoints import Endpoint
from app.api.errors import ErrorForm
from app.api.openapi.bodies import BINARY
from app.api.openapi.errors import errors_of, operation, prediction_errors, suffix_of
from app.api.openapi.headers import answered, path_parameters
from app.api.openapi.headers import parameters as header_parameters
from app.codecs.base import JSON, OCTET_STREAM
from app.errors import InvalidInput

TAG, ERROR = "open inference protocol", "V2Error"
ERRORS = errors_of(ERROR)
FORM = ErrorForm(lambda failure: {"error": failure.message}, {InvalidInput: 400})

_TENSOR: Docs = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "shape": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0},
            "minItems": 1,
            "description": "the first axis counts the items",
        },
        "datatype": {"type": "string", "description": "FP32, INT64, BOOL, BYTES and others"},
        "parameters": {"type": "object", "additionalProperties": True},
        "data": {"type": "array", "items": {}, "description": "numbers (flat or nested) or files"},
    },
    "required": ["name", "shape", "datatype"],
    "additionalProperties": True,
}
_WANTED: Docs = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "parameters": {
            "type": "object",
            "properties": {
                "binary_data": {"type": "boolean"},
                "classification": {"type": "integer", "minimum": 0},
            },
            "additionalProperties": True,
        },
    },
    "required": ["name"],
    "additionalProperties": True,
}
SCHEMAS: dict[str, Docs] = {
    "InferTensor": _TENSOR,
    "InferOutput": _WANTED,
    "InferRequest": {
        "type": "object",
        "properties": {
            "id": {"type": "string", "description": "repeated in the answer"},
            "inputs": {
                "type": "array",
                "items": {"$ref": "#/components/schemas/InferTensor"},
                "minItems": 1,
            },
            "outputs": {
                "type": "array",
                "items": {"$ref": "#/components/schemas/InferOutput"},
                "description": "default: all outputs",
            },
            "parameters": {
                "type": "object",
                "properties": {
                    "binary_data_output": {"type": "boolean"},
                    "timeout": {"type": "integer", "minimum": 0, "description": "microseconds"},
                },
                "additionalProperties": True,
            },
        },
        "required": ["inputs"],
        "additionalProperties": True,
    },
    "InferAnswer": {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "model_name": {"type": "string"},
            "model_version": {"type": "string"},
            "outputs": {
                "type": "array",
                "items": {"$ref": "#/components/schemas/InferTensor"},
            },
        },
        "required": ["model_name", "model_version", "outputs"],
        "additionalProperties": False,
    },
    ERROR: {
        "type": "object",
        "properties": {
            "error": {"type": "string", "description": "a sentence that says what to do"}
        },
        "required": ["error"],
    },
}
_LENGTH: Docs = {
    "name": "Inference-Header-Content-Length",
    "in": "header",
    "required": False,
    "schema": {"type": "integer", "minimum": 0},
    "description": "size in bytes of the JSON at the start of a body, before the binary tensors; "
    "0: the body holds the bytes of the only input",
}


def operations(endpoint: Endpoint) -> list[Docs]:
    """See `Operations`."""
    answer = {"schema": {"$ref": "#/components/schemas/InferAnswer"}}
    body = {"schema": {"$ref": "#/components/schemas/InferRequest"}}
    ok: Docs = {
        "description": "The outputs; binary tensors follow the JSON as bytes",
        "content": {JSON: answer, OCTET_STREAM: BINARY},
        "headers": answered(many=True),
    }
    return [
        operation(
            f"infer{suffix_of(endpoint.route)}",
            "Many items as tensors, with outputs for each; equal items are computed once.",
            TAG,
            {200: ok, **prediction_errors(ERRORS, without=(422,))},
            body={"content": {JSON: body, OCTET_STREAM: BINARY}},
            parameters=[
                *header_parameters(native=False),
                _LENGTH,
                *path_parameters(endpoint.route),
            ],
        )
    ]


OPERATIONS = Operations(TAG, ERROR, operations, SCHEMAS)
