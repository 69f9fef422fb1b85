"""The OpenAPI document of the prediction routes: exact for every body, answer and error.

/predict is described for the default model, with examples that work when pasted. Therefore the
document is built on request.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from app.api.access import SECURITY, SECURITY_SCHEMES
from app.api.errors import protocol_of
from app.api.openapi import protocols, schemas, text
from app.api.openapi.bodies import (
    ANY_MEDIA_TYPES,
    BINARY,
    request_body,
    request_name,
    request_schema,
)
from app.api.openapi.errors import (
    ACCESS_HEADERS,
    DESCRIPTIONS,
    ERROR_SCHEMAS,
    ERRORS,
    TEXT,
    TORCHSERVE,
    V2,
    Responses,
    prediction_errors,
)
from app.api.openapi.headers import REQUEST_ID, RETRY_AFTER, answered, path_parameters
from app.api.openapi.headers import parameters as header_parameters
from app.api.service import Service
from app.codecs.base import JSON, NPY, NPZ, OCTET_STREAM, PNG
from app.errors import TorchlaneError
from app.registry.loaded_models import LoadedModel

Docs = dict[str, Any]
# Media types of answers besides JSON, for any model.
ANY_BATCH_TYPES = (OCTET_STREAM, NPY, NPZ)
ANY_ITEM_TYPES = (*ANY_BATCH_TYPES, PNG)
METRICS = ("metrics", "live_load")  # the operations with that scope


def prediction_docs(path: str, *, many: bool) -> Docs:
    """Keyword arguments for an `APIRoute` that describe a prediction route."""
    answer = schemas.BatchPredictAnswer if many else schemas.PredictAnswer
    ok: Docs = {
        "model": answer,
        "description": "The predictions" if many else "The prediction",
        # JSON first: client generators use the first media type that they know.
        "content": {JSON: {}, **dict.fromkeys(ANY_BATCH_TYPES if many else ANY_ITEM_TYPES, BINARY)},
        "headers": answered(many=many),
    }
    responses: Responses = {200: ok, **prediction_errors(ERRORS)}
    responses[503] = {**responses[503], "headers": RETRY_AFTER}
    parameters = [*header_parameters(many=many), *path_parameters(path)]
    body = request_body(request_name(many=many), ANY_MEDIA_TYPES, many=many)
    return {
        "tags": ["predictions"],
        "responses": responses,
        "openapi_extra": {"requestBody": body, "parameters": parameters},
    }


def install_openapi(app: FastAPI, service: Service) -> None:
    """Build the document on request, and again when another default model is loaded."""
    made_for: object = None
    made: Docs = {}

    def document() -> Docs:
        nonlocal made_for, made
        try:
            model = service.loaded.resolve()
        except TorchlaneError:
            model = None  # nothing is loaded yet: the document is correct but less exact
        guard = service.guard
        now = (model, guard.asks_for_keys, guard.enabled)
        if now != made_for:  # building blocks the event loop for 20 ms
            made_for, made = now, _made(app, model, service)
        return made

    app.openapi = document  # type: ignore[method-assign]  # as FastAPI's documentation says


def _made(app: FastAPI, model: LoadedModel | None, service: Service) -> Docs:
    made = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    for many in (False, True):
        made["components"]["schemas"][request_name(many=many)] = request_schema(many=many)
    made["components"]["schemas"].update({**protocols.SCHEMAS, **text.SCHEMAS})
    _show_access(made, service)
    for _, operation in _operations(made):
        for response in operation["responses"].values():
            response["headers"] = {**response.get("headers", {}), **REQUEST_ID}
    if model is not None:
        _describe_default(model, service.limits.max_items, made)
    return made


def _describe_default(model: LoadedModel, max_items: int, made: Docs) -> None:
    """Describe the bodies that the default model accepts, with working examples."""
    for path, many in (("/predict", False), ("/batch-predict", True)):
        name, item = request_name("Default", many=many), model.codec.item_schema()
        made["components"]["schemas"][name] = request_schema(item, max_items, many=many)
        codec = model.codec
        body = request_body(name, codec.media_types, max_items, many=many, parts=codec.parts)
        operation = made["paths"][path]["post"]
        operation["requestBody"] = body
        has_scores = model.manifest.codec.has_scores(model.manifest.outputs[0])
        has_pictures = any(spec.picture is not None for spec in model.manifest.outputs)
        useless = ["top_k"] * (not has_scores) + ["pictures"] * (not has_pictures)
        operation["parameters"] = [
            each for each in operation["parameters"] if each["name"] not in useless
        ]
    example = model.manifest.example
    named = {"name": model.id.name, "version": model.id.version}
    for path, methods in made["paths"].items():
        for operation in methods.values():
            tags = operation.get("tags", ())
            if not {"predictions", "models", V2, TORCHSERVE} & set(tags):
                continue  # pasting an admin call's example would unload the default model
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "path" and parameter["name"] in named:
                    parameter["example"] = named[parameter["name"]]
            if "predictions" in tags and example is not None:  # None: too large to show
                content = operation["requestBody"]["content"][JSON]
                many = path.endswith("/batch-predict")
                content["example"] = {"inputs": [example] * 2} if many else {"input": example}


def _show_access(made: Docs, service: Service) -> None:
    """Mark the operations that need a key in this server's configuration."""
    asked = (
        {"predictions", "models", V2, TORCHSERVE, TEXT} if service.guard.asks_for_keys else set()
    )
    for path, operation in _operations(made):
        tags = set(operation.get("tags", ()))
        predicts = path.endswith("/infer") or bool(tags & {"predictions", TORCHSERVE, TEXT})
        metered = predicts and service.guard.enabled
        closed = operation["operationId"] in METRICS and not service.limits.open_metrics
        if tags & asked or closed:
            operation["security"] = SECURITY
        statuses = {401, 403} if "security" in operation else set()
        schema = ERROR_SCHEMAS[protocol_of(path)]
        for status in sorted(statuses | ({429} if metered else set())):
            content = {JSON: {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
            shown = {
                "description": DESCRIPTIONS[status],
                "content": content,
                "headers": ACCESS_HEADERS[status],
            }
            operation["responses"].setdefault(str(status), shown)
        if "security" in operation:
            made["components"].setdefault("securitySchemes", {}).update(SECURITY_SCHEMES)


def _operations(made: Docs) -> Iterator[tuple[str, Docs]]:
    for path, methods in made["paths"].items():
        for operation in methods.values():
            yield path, operation
