"""The native protocol. Its part of the OpenAPI document is exact for the default model."""

from __future__ import annotations

from fastapi import FastAPI

from app.api.dialect import Dialect, Docs, Operations
from app.api.endpoints import Endpoint
from app.api.errors import ErrorForm, Failure
from app.api.native.models import add_models
from app.api.native.predictions import ENDPOINTS
from app.api.native.shadow import add_shadow
from app.api.openapi import schemas
from app.api.openapi.bodies import (
    ANY_MEDIA_TYPES,
    BINARY,
    request_body,
    request_name,
    request_schema,
)
from app.api.openapi.errors import ERRORS, operation, prediction_errors, suffix_of
from app.api.openapi.headers import answered, path_parameters
from app.api.openapi.headers import parameters as header_parameters
from app.api.service import Service
from app.codecs.base import JSON, NPY, NPZ, OCTET_STREAM, PNG
from app.registry.loaded_models import LoadedModel

TAG = "predictions"
# Media types of answers besides JSON, for any model.
ANY_BATCH_TYPES = (OCTET_STREAM, NPY, NPZ)
ANY_ITEM_TYPES = (*ANY_BATCH_TYPES, PNG)


def operations(endpoint: Endpoint) -> list[Docs]:
    """See `Operations`."""
    route, many = endpoint.route, endpoint.many
    name, does = "predict", "One input, one prediction."
    if many:
        name = "batch_predict"
        does = "Many inputs, many predictions in the same order; equal inputs are computed once."
    ok: Docs = {
        "model": schemas.BatchPredictAnswer if many else schemas.PredictAnswer,
        "description": "The predictions" if many else "The prediction",
        # JSON first: client generators use the first media type that they know.
        "content": {JSON: {}, **dict.fromkeys(ANY_BATCH_TYPES if many else ANY_ITEM_TYPES, BINARY)},
        "headers": answered(many=many),
    }
    suffix = suffix_of(route) or "_by_model" * ("{name}" in route)
    parameters = [*header_parameters(many=many), *path_parameters(route)]
    body = request_body(request_name(many=many), ANY_MEDIA_TYPES, many=many)
    responses = {200: ok, **prediction_errors(ERRORS)}
    return [operation(name + suffix, does, TAG, responses, body=body, parameters=parameters)]


def for_default(made: Docs, model: LoadedModel, max_items: int) -> None:
    """Describe the bodies that the default model accepts, with working examples."""
    codec, outputs = model.codec, model.manifest.outputs
    useless = ["top_k"] * (not model.manifest.codec.has_scores(outputs[0]))
    if all(spec.picture is None for spec in outputs):
        useless.append("pictures")
    for path, many in (("/predict", False), ("/batch-predict", True)):
        name = request_name("Default", many=many)
        made["components"]["schemas"][name] = request_schema(
            codec.item_schema(), max_items, many=many
        )
        operation = made["paths"][path]["post"]
        operation["requestBody"] = request_body(
            name, codec.media_types, max_items, many=many, parts=codec.parts
        )
        operation["parameters"] = [
            each for each in operation["parameters"] if each["name"] not in useless
        ]
    example = model.manifest.example
    if example is None:  # too large to show
        return
    for path, methods in made["paths"].items():
        for operation in methods.values():
            if TAG in operation.get("tags", ()):
                many = path.endswith("/batch-predict")
                shown = {"inputs": [example] * 2} if many else {"input": example}
                operation["requestBody"]["content"][JSON]["example"] = shown


def error_body(failure: Failure) -> object:
    """The body of an error."""
    content: dict[str, object] = {
        "error": failure.message,
        "code": failure.code,
        "request_id": failure.request_id,
        "details": failure.details,
    }
    if failure.retry_after_ms is not None:
        content["retry_after_ms"] = failure.retry_after_ms
    return content


def _add_routes(app: FastAPI, service: Service) -> None:
    add_models(app, service)
    add_shadow(app, service)


NATIVE = Dialect(
    endpoints=lambda: ENDPOINTS,
    errors=ErrorForm(error_body, {}),
    docs=Operations(
        tag=TAG,
        error_schema="ErrorBody",
        of=operations,
        schemas={request_name(many=many): request_schema(many=many) for many in (False, True)},
        for_default=for_default,
    ),
    roots=("predict", "batch-predict", "models"),
    add_routes=_add_routes,
    probes=("/health", "/health/live", "/health/ready"),
    admin_paths=("/admin",),
)
