"""What platforms call in a container: SageMaker and MLflow by fixed paths, Vertex AI by its own."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse

from app.api.access import Reader
from app.api.dialect import Dialect, Docs, Operations
from app.api.endpoints import Endpoint
from app.api.errors import ErrorForm, Failure
from app.api.invocations.call import InvocationsCall
from app.api.openapi.bodies import BINARY, COLUMNS, ITEMS
from app.api.openapi.errors import errors_of, operation, prediction_errors
from app.api.openapi.headers import answered, parameters
from app.api.queries import NoQuery
from app.api.service import Service
from app.codecs.base import JSON, NPY, NPZ, OCTET_STREAM
from app.errors import InvalidInput

TAG, ERROR = "invocations", "InvocationsError"
PREDICT = "/invocations"
# MLflow's names of errors, by status; its clients read the message.
CODES = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "RESOURCE_DOES_NOT_EXIST",
    429: "REQUEST_LIMIT_EXCEEDED",
    503: "TEMPORARILY_UNAVAILABLE",
}
TABLE: Docs = {
    "type": "object",
    "description": "a table, as pandas writes it with `orient='split'`",
    "properties": {
        "columns": {"type": "array", "items": {"type": ["string", "integer"]}},
        "index": {"type": "array", "items": {}},
        "data": {"type": "array", "items": {"type": "array", "items": {}}, "minItems": 1},
    },
    "required": ["data"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, Docs] = {
    "InvocationsRequest": {
        "type": "object",
        "minProperties": 1,
        "maxProperties": 1,
        "properties": {
            "instances": ITEMS,
            "inputs": {"anyOf": [ITEMS, COLUMNS]},
            "dataframe_split": TABLE,
            "dataframe_records": {"type": "array", "items": {"type": "object"}, "minItems": 1},
        },
        "additionalProperties": False,
    },
    "InvocationsAnswer": {
        "type": "object",
        "properties": {"predictions": {"type": "array", "items": {}}},
        "required": ["predictions"],
        "additionalProperties": False,
    },
    ERROR: {
        "type": "object",
        "properties": {"error_code": {"type": "string"}, "message": {"type": "string"}},
        "required": ["error_code", "message"],
        "additionalProperties": False,
    },
}


def error_body(failure: Failure) -> object:
    """The body of an error."""
    other = "BAD_REQUEST" if failure.status < 500 else "INTERNAL_ERROR"
    return {"error_code": CODES.get(failure.status, other), "message": failure.message}


def operations(endpoint: Endpoint) -> list[Docs]:
    """See `Operations`."""
    ok: Docs = {
        "description": "The prediction of each item; a classifier's as in `/predict`",
        "content": {
            JSON: {"schema": {"$ref": "#/components/schemas/InvocationsAnswer"}},
            **dict.fromkeys((OCTET_STREAM, NPY, NPZ), BINARY),
        },
        "headers": answered(many=True),
    }
    content = {
        JSON: {"schema": {"$ref": "#/components/schemas/InvocationsRequest"}},
        OCTET_STREAM: BINARY,
    }
    told = "or `.npy`, `.npz`, a picture, a sound or a text, with its Content-Type"
    return [
        operation(
            "invocations" if endpoint.route == PREDICT else "platform_predict",
            "Many inputs for the default model, in the format of SageMaker, MLflow and Vertex AI.",
            TAG,
            {200: ok, **prediction_errors(errors_of(ERROR), without=(422,))},
            body={"content": content, "description": told},
            parameters=parameters(native=False),
        )
    ]


def add_version(app: FastAPI, _: Service) -> None:
    """Add MLflow's call for the server's version."""

    @app.get(
        "/version",
        tags=["models"],
        operation_id="version",
        dependencies=[Reader, NoQuery],
        responses=errors_of(ERROR)[400],
        response_class=PlainTextResponse,
    )
    async def version() -> str:
        """The server's version, as plain text."""
        return app.version


def invocations(predict_route: str | None = None, health_route: str | None = None) -> Dialect:
    """The protocol; a platform may choose other paths for predictions and for its probe."""
    routes = dict.fromkeys((PREDICT, predict_route or PREDICT))
    return Dialect(
        endpoints=lambda: tuple(Endpoint(each, InvocationsCall, many=True) for each in routes),
        errors=ErrorForm(error_body, {InvalidInput: 400}),
        docs=Operations(TAG, ERROR, operations, SCHEMAS),
        roots=("invocations", "version"),
        add_routes=add_version,
        probes=() if health_route is None else (health_route,),
    )
