"""KServe's version 1 over REST, which is TensorFlow Serving's predict call.

The calls that list and describe models are OpenAI's, in `text/models.py`, whose answers have the
fields of all three.
"""

from __future__ import annotations

from app.api.dialect import Dialect, Docs, Operations
from app.api.endpoints import Endpoint
from app.api.errors import ErrorForm, Failure
from app.api.instances import InstancesCall
from app.api.openapi.bodies import COLUMNS, ITEMS
from app.api.openapi.errors import errors_of, operation, prediction_errors, suffix_of
from app.api.openapi.headers import answered, parameters, path_parameters
from app.codecs.base import JSON
from app.errors import InvalidInput

TAG, ERROR = "kserve", "V1Error"
REQUEST: Docs = {
    "oneOf": [{"$ref": f"#/components/schemas/{name}"} for name in ("V1Instances", "V1Inputs")]
}


def _form(name: str, items: Docs) -> Docs:
    signature = {"type": "string", "enum": ["", "serving_default"]}
    return {
        "type": "object",
        "properties": {name: items, "signature_name": signature},
        "required": [name],
        "additionalProperties": False,
    }


SCHEMAS: dict[str, Docs] = {
    "V1Instances": _form("instances", {**ITEMS, "description": "several inputs by name"}),
    "V1Inputs": _form("inputs", {"anyOf": [ITEMS, COLUMNS]}),
    "V1Answer": {
        "type": "object",
        "properties": {
            "predictions": {"type": "array", "items": {}, "description": "of `instances`"},
            "outputs": {"description": "of `inputs`; several outputs as lists by name"},
        },
        "additionalProperties": False,
    },
    ERROR: {
        "type": "object",
        "properties": {"error": {"type": "string"}},
        "required": ["error"],
        "additionalProperties": False,
    },
}


def error_body(failure: Failure) -> object:
    """The body of an error."""
    return {"error": failure.message}


def operations(endpoint: Endpoint) -> list[Docs]:
    """See `Operations`."""
    ok: Docs = {
        "description": "The outputs of each item; detections as in `/predict`",
        "content": {JSON: {"schema": {"$ref": "#/components/schemas/V1Answer"}}},
        "headers": answered(many=True),
    }
    return [
        operation(
            f"v1_predict{suffix_of(endpoint.route)}",
            "Many inputs, by row or by column, in the format of KServe V1 and TensorFlow Serving.",
            TAG,
            {200: ok, **prediction_errors(errors_of(ERROR), without=(422,))},
            body={"content": {JSON: {"schema": REQUEST}}},
            parameters=[*parameters(native=False), *path_parameters(endpoint.route)],
        )
    ]


KSERVE = Dialect(
    endpoints=lambda: tuple(
        Endpoint(f"/v1/models/{{name}}{version}:predict", InstancesCall, many=True)
        for version in ("", "/versions/{version}")
    ),
    errors=ErrorForm(error_body, {InvalidInput: 400}),
    docs=Operations(TAG, ERROR, operations, SCHEMAS),
    roots=(),
)
