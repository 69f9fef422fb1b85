"""The OpenAPI document: exact for every body, answer and error of predictions.

It depends on the default model and on the access rules. Therefore it is built on request.
"""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from app.api.access import SECURITY, SECURITY_SCHEMES
from app.api.dialect import Docs
from app.api.openapi.errors import ACCESS_HEADERS, DESCRIPTIONS, error_of
from app.api.openapi.handlers import BATCH_PATH, PATH, add_handlers
from app.api.openapi.headers import REQUEST_ID
from app.api.service import Service
from app.errors import TorchlaneError
from app.registry.loaded_models import LoadedModel

METRICS = ("metrics", "live_load")  # the operations with that scope
MODELS = "models"  # tag of the calls that list models


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
        handlers = service.loaded.current_handlers()
        now = (model, handlers, guard.asks_for_keys, guard.enabled)
        if now != made_for:  # building blocks the event loop for 20 ms
            made_for, made = now, _made(app, model, service)
        return made

    app.openapi = document  # type: ignore[method-assign]  # as FastAPI's documentation says


def _made(app: FastAPI, model: LoadedModel | None, service: Service) -> Docs:
    made = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    for dialect, _ in service.dialects.served:
        made["components"]["schemas"].update(dialect.docs.schemas)
    add_handlers(made, service.loaded.current_handlers())
    _show_access(made, service)
    for _, operation in _operations(made):
        for response in operation["responses"].values():
            response["headers"] = {**response.get("headers", {}), **REQUEST_ID}
    if model is not None:
        for dialect, _ in service.dialects.served:
            dialect.docs.for_default(made, model, service.limits.max_items)
        _name_default(made, model, service)
    return made


def _name_default(made: Docs, model: LoadedModel, service: Service) -> None:
    """Let the examples of names and versions be those of the default model."""
    named = {"name": model.id.name, "version": model.id.version}
    tags = _tags(service)
    for _, operation in _operations(made):
        if not tags & set(operation.get("tags", ())):
            continue  # pasting an admin call's example would unload the default model
        for parameter in operation.get("parameters", ()):
            if parameter["in"] == "path" and parameter["name"] in named:
                parameter["example"] = named[parameter["name"]]


def _tags(service: Service) -> set[str]:
    """The tags of the calls that need the scope of predictions."""
    return {MODELS, *(dialect.docs.tag for dialect, _ in service.dialects.served)}


def _show_access(made: Docs, service: Service) -> None:
    """Mark the operations that need a key in this server's configuration."""
    dialects = service.dialects
    asked = _tags(service) if service.guard.asks_for_keys else set()
    predictions = {endpoint.route for _, many in dialects.served for endpoint in many}
    predictions |= {
        path.replace("{name}", each.id.name)
        for path in (PATH, BATCH_PATH)
        for each in service.loaded.current_handlers()
    }
    for path, operation in _operations(made):
        closed = operation["operationId"] in METRICS and not service.limits.open_metrics
        if asked & set(operation.get("tags", ())) or closed:
            operation["security"] = SECURITY
        statuses = {401, 403} if "security" in operation else set()
        if path in predictions and service.guard.enabled:
            statuses.add(429)
        schema = dialects.of_route(path).docs.error_schema
        for status in sorted(statuses):
            shown = {**error_of(schema, DESCRIPTIONS[status]), "headers": ACCESS_HEADERS[status]}
            operation["responses"].setdefault(str(status), shown)
        if "security" in operation:
            made["components"].setdefault("securitySchemes", {}).update(SECURITY_SCHEMES)


def _operations(made: Docs) -> Iterator[tuple[str, Docs]]:
    for path, methods in made["paths"].items():
        for operation in methods.values():
            yield path, operation
