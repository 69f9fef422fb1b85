"""The OpenAPI document of the prediction routes: exact for every body, answer and error.

/predict is described for the default model, with examples of that model, so that they work when
pasted. Therefore the document is made on request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from app.api.access import SECURITY, SECURITY_SCHEMES
from app.api.errors import protocol_of
from app.api.openapi import protocols, schemas
from app.api.openapi.bodies import (
    ANY_MEDIA_TYPES,
    BINARY,
    request_body,
    request_name,
    request_schema,
)
from app.api.openapi.headers import CHALLENGE, REQUEST_ID, RETRY_AFTER, answered
from app.api.openapi.headers import parameters as header_parameters
from app.api.service import Service
from app.codecs.base import JSON, NPY, OCTET_STREAM
from app.errors import TorchlaneError
from app.registry.loaded_models import LoadedModel

Docs = dict[str, Any]
Responses = dict[int | str, dict[str, Any]]

_DESCRIPTIONS = {
    401: "No API key was sent, or an unknown one",
    403: "The API key does not allow this",
    404: "No such model, or not this version of it",
    406: "The answer cannot be written as Accept asks",
    413: "The body or the number of items is over the limit",
    415: "The model does not read this Content-Type",
    422: "The input does not fit the model; `details` names the item",
    429: "The caller's rate limit is reached (with Retry-After); worth a retry",
    500: "The model failed on the input",
    503: "Overloaded (with Retry-After), loading, or shutting down; worth a retry",
    504: "The request's deadline has passed",
}
ERRORS: dict[int, Responses] = {
    status: {status: {"model": schemas.ErrorBody, "description": text}}
    for status, text in _DESCRIPTIONS.items()
}
V2 = "open inference protocol"  # tag of its calls
V2_ERRORS: dict[int, Responses] = {
    status: {status: {"model": schemas.V2Error, "description": text}}
    for status, text in {**_DESCRIPTIONS, 400: "The request does not fit the model"}.items()
}
TORCHSERVE = "torchserve"  # tag of its calls
TORCHSERVE_ERRORS: dict[int, Responses] = {
    status: {
        status: {
            "content": {JSON: {"schema": {"$ref": "#/components/schemas/TorchServeError"}}},
            "description": found[status]["description"],
        }
    }
    for status, found in V2_ERRORS.items()
}
ERROR_SCHEMAS = {"native": "ErrorBody", "oip": "V2Error", "torchserve": "TorchServeError"}
ACCESS_HEADERS: dict[int, Docs] = {401: CHALLENGE, 403: {}, 429: RETRY_AFTER}  # of rejections


def prediction_docs(path: str, *, many: bool) -> Docs:
    """Keyword arguments for an `APIRoute` that describe a prediction route."""
    answer = schemas.BatchPredictAnswer if many else schemas.PredictAnswer
    ok: Docs = {
        "model": answer,
        "description": "The predictions" if many else "The prediction",
        # JSON first: client generators take the answer's type from the first that they know.
        "content": {JSON: {}, OCTET_STREAM: BINARY, NPY: BINARY},
        "headers": answered(many=many),
    }
    responses: Responses = {200: ok, **_all(ERRORS)}
    responses[503] = {**responses[503], "headers": RETRY_AFTER}
    parameters = [*header_parameters(), *path_parameters(path)]
    body = request_body(request_name(many=many), ANY_MEDIA_TYPES, many=many)
    return {
        "tags": ["predictions"],
        "responses": responses,
        "openapi_extra": {"requestBody": body, "parameters": parameters},
    }


def infer_docs(path: str) -> Docs:
    """Keyword arguments for an `APIRoute` of the Open Inference Protocol's infer call."""
    errors = _all(V2_ERRORS, without=(406, 422))
    return {"tags": [V2], **protocols.infer_docs(errors, path_parameters(path))}


def torchserve_docs(path: str) -> Docs:
    """Keyword arguments for an `APIRoute` of TorchServe's call for predictions."""
    errors = _all(TORCHSERVE_ERRORS, without=(406, 422))
    return {"tags": [TORCHSERVE], **protocols.predictions_docs(errors, path_parameters(path))}


def _all(errors: dict[int, Responses], without: Sequence[int] = ()) -> Responses:
    """Every error of a call for predictions but those about access, which `_show_access` adds."""
    left = errors.keys() - ACCESS_HEADERS.keys() - set(without)
    return {status: errors[status][status] for status in sorted(left)}


def install_openapi(app: FastAPI, service: Service) -> None:
    """Make the document on request, and again when another default model is loaded."""
    made_for: object = None
    made: Docs = {}

    def document() -> Docs:
        nonlocal made_for, made
        try:
            model = service.loaded.resolve()
        except TorchlaneError:
            model = None  # nothing is loaded yet: the document is correct, only less exact
        guard = service.guard
        now = (model, guard.asks_for_keys, guard.enabled)
        if now != made_for:  # it takes 20 ms, which block the event loop
            made_for, made = now, _made(app, model, service)
        return made

    app.openapi = document  # type: ignore[method-assign]  # the way FastAPI documents


def _made(app: FastAPI, model: LoadedModel | None, service: Service) -> Docs:
    made = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    for many in (False, True):
        made["components"]["schemas"][request_name(many=many)] = request_schema(many=many)
    made["components"]["schemas"].update(protocols.SCHEMAS)
    _show_access(made, service)
    for _, operation in _operations(made):
        for response in operation["responses"].values():
            response["headers"] = {**response.get("headers", {}), **REQUEST_ID}
    if model is not None:
        _describe_default(model, service.limits.max_items, made)
    return made


def _describe_default(model: LoadedModel, max_items: int, made: Docs) -> None:
    """Describe the bodies that the default model takes, with examples that work."""
    for path, many in (("/predict", False), ("/batch-predict", True)):
        name, item = request_name("Default", many=many), model.codec.item_schema()
        made["components"]["schemas"][name] = request_schema(item, max_items, many=many)
        body = request_body(name, model.codec.media_types, max_items, many=many)
        operation = made["paths"][path]["post"]
        operation["requestBody"] = body
        if not model.manifest.codec.has_scores(model.manifest.outputs[0]):
            operation["parameters"] = [
                each for each in operation["parameters"] if each["name"] != "top_k"
            ]
    example = model.manifest.example
    named = {"name": model.id.name, "version": model.id.version}
    for path, methods in made["paths"].items():
        for operation in methods.values():
            tags = operation.get("tags", ())
            if not {"predictions", "models", V2, TORCHSERVE} & set(tags):
                continue  # a pasted example of an admin call would unload the default model
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "path" and parameter["name"] in named:
                    parameter["example"] = named[parameter["name"]]
            if "predictions" in tags and example is not None:  # None: too large to show
                content = operation["requestBody"]["content"][JSON]
                many = path.endswith("/batch-predict")
                content["example"] = {"inputs": [example] * 2} if many else {"input": example}


def _show_access(made: Docs, service: Service) -> None:
    """Mark the operations that need a key, as this server is configured."""
    asked = {"predictions", "models", V2, TORCHSERVE} if service.guard.asks_for_keys else set()
    for path, operation in _operations(made):
        tags = set(operation.get("tags", ()))
        predicts = "predictions" in tags or path.endswith("/infer") or TORCHSERVE in tags
        metered = predicts and service.guard.enabled
        closed = operation["operationId"] == "metrics" and not service.limits.open_metrics
        if tags & asked or closed:
            operation["security"] = SECURITY
        statuses = {401, 403} if "security" in operation else set()
        schema = ERROR_SCHEMAS[protocol_of(path)]
        for status in sorted(statuses | ({429} if metered else set())):
            content = {JSON: {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
            shown = {
                "description": _DESCRIPTIONS[status],
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


def path_parameters(path: str) -> list[Docs]:
    """The parameters in the path of a model's call."""
    found = [path_parameter("name", {"type": "string"})] if "{name}" in path else []
    if "{version}" in path:
        found.append(path_parameter("version", {"type": "integer", "minimum": 1}))
    return found


def path_parameter(name: str, schema: Docs) -> Docs:
    """A path parameter that FastAPI does not know: it would add a 422 that never occurs."""
    return {"name": name, "in": "path", "required": True, "schema": schema}
