"""The prediction calls of other protocols, for the OpenAPI document."""

from __future__ import annotations

from app.api.openapi.bodies import ANY_ITEM, BINARY, FILE
from app.api.openapi.errors import (
    TORCHSERVE,
    TORCHSERVE_ERRORS,
    V2,
    V2_ERRORS,
    Responses,
    prediction_errors,
)
from app.api.openapi.headers import RETRY_AFTER, Docs, answered, path_parameters
from app.api.openapi.headers import parameters as header_parameters
from app.codecs.base import JSON, OCTET_STREAM

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
    "TorchServeError": {
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
_LENGTH: Docs = {
    "name": "Inference-Header-Content-Length",
    "in": "header",
    "required": False,
    "schema": {"type": "integer", "minimum": 0},
    "description": "size in bytes of the JSON at the start of a body, before the binary tensors; "
    "0: the body holds the bytes of the only input",
}


def infer_docs(path: str) -> Docs:
    """Keyword arguments for an `APIRoute` of the Open Inference Protocol's infer call."""
    answer = {"schema": {"$ref": "#/components/schemas/InferAnswer"}}
    body = {"schema": {"$ref": "#/components/schemas/InferRequest"}}
    ok: Docs = {
        "description": "The outputs; binary tensors follow the JSON as bytes",
        "content": {JSON: answer, OCTET_STREAM: BINARY},
        "headers": answered(many=True),
    }
    content = {JSON: body, OCTET_STREAM: BINARY}
    parameters = [*header_parameters(native=False), _LENGTH, *path_parameters(path)]
    return _docs(V2, ok, V2_ERRORS, content, parameters)


def torchserve_docs(path: str) -> Docs:
    """Keyword arguments for an `APIRoute` of TorchServe's prediction call."""
    form = {
        "type": "object",
        "properties": {"data": {**FILE, "minLength": 1}},
        "required": ["data"],
        "additionalProperties": False,
    }
    ok: Docs = {
        "description": "The five best labels and their scores; without labels, the output",
        "content": {JSON: {"schema": {}}},
        "headers": answered(many=False),
    }
    content = {
        JSON: {"schema": ANY_ITEM},
        OCTET_STREAM: BINARY,
        "multipart/form-data": {"schema": form},
    }
    parameters = [*header_parameters(native=False), *path_parameters(path)]
    return _docs(TORCHSERVE, ok, TORCHSERVE_ERRORS, content, parameters)


def _docs(
    tag: str, ok: Docs, errors: dict[int, Responses], content: Docs, parameters: list[Docs]
) -> Docs:
    responses: Responses = {200: ok, **prediction_errors(errors, without=(422,))}
    responses[503] = {**responses[503], "headers": RETRY_AFTER}
    return {
        "tags": [tag],
        "responses": responses,
        "openapi_extra": {
            "requestBody": {"required": True, "content": content},
            "parameters": parameters,
        },
    }
