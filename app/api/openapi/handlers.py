"""The paths of handlers in the OpenAPI document: each has bodies and answers of its own."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from typing import Any

import orjson

from app.api.dialect import Docs
from app.api.streams import NDJSON, SSE
from app.codecs.base import JSON
from app.handlers.contract import NO_CONTENT
from app.registry.loaded_models import LoadedHandler

PATH, BATCH_PATH = "/models/{name}/predict", "/models/{name}/batch-predict"
DEFINED = re.compile(rb'"#/\$defs/([^"\\]*)"')
NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")  # of a component
ANY: Docs = {"schema": {}}
STREAMS = (
    "\n\nEach item is the data of an event, or a line. If the handler fails after the first item, "
    "an event `error` (in `application/x-ndjson` a last line) has the body of an error, and the "
    "connection is closed without the end of the body."
)


def add_handlers(made: Docs, handlers: Iterable[LoadedHandler]) -> None:
    """Add the calls of each handler, next to those of any model.

    Args:
        made: the document, with the calls of models by name.
        handlers: the current version of each.
    """
    for handler in handlers:
        name, manifest = handler.id.name, handler.manifest
        schema = _schema(made, handler)
        takes = {each.partition(";")[0]: ANY for each in manifest.media_types} or {JSON: ANY}
        if schema is not None:
            takes = {JSON: {"schema": schema}}
        gives: dict[str, Docs] = {}  # by status
        for each in manifest.golden:
            gives.setdefault(str(each.status), {})[each.answer_type.partition(";")[0]] = ANY
        if manifest.streams:
            gives["200"] = {SSE: ANY, NDJSON: ANY, JSON: {"schema": {"type": "array"}}}
        items: Docs = {"type": "array", "minItems": 1, "items": schema or {}}
        batch = {
            "type": "object",
            "properties": {"inputs": items},
            "required": ["inputs"],
            "additionalProperties": False,
        }
        about = manifest.description or f"The handler {name}."
        about += STREAMS * manifest.streams
        _add(made, PATH, name, about, takes, gives)
        _add(made, BATCH_PATH, name, about, {JSON: {"schema": batch}}, {"200": {JSON: ANY}})


def _add(made: Docs, path: str, name: str, about: str, takes: Docs, gives: Docs) -> None:
    operation = copy.deepcopy(made["paths"][path]["post"])
    operation["operationId"] = f"{operation['operationId']}_{name}"
    operation["summary"] = about[:100]
    operation["description"] = about
    operation["parameters"] = [each for each in operation["parameters"] if each["in"] == "header"]
    operation["requestBody"] = {"required": True, "content": takes}
    answers = operation["responses"]
    usual = answers.pop("200")
    headers = {
        key: each for key, each in usual.get("headers", {}).items() if "cache" not in key.lower()
    }
    for status, content in gives.items():
        own = {"description": "What the handler answers", "headers": headers}
        if status != str(NO_CONTENT):
            own["content"] = {**answers.get(status, {}).get("content", {}), **content}
        answers[status] = own
    made["paths"][path.replace("{name}", name)] = {"post": operation}


def _schema(made: Docs, handler: LoadedHandler) -> Docs | None:
    """The schema of a handler's bodies, whose definitions become components."""
    schema = handler.manifest.request_schema
    if schema is None:
        return None
    prefix = f"{handler.id.name}."
    moved = orjson.loads(
        DEFINED.sub(
            lambda match: b'"#/components/schemas/%b%b"' % (prefix.encode(), match[1]),
            orjson.dumps(schema),
        )
    )
    definitions: Any = moved.pop("$defs", {})
    if not isinstance(definitions, dict) or not all(
        NAME.fullmatch(name) and isinstance(each, dict) for name, each in definitions.items()
    ):
        return {}  # of another tool's making: no component can have this name
    for name, each in definitions.items():
        made["components"]["schemas"][prefix + name] = each
    return dict(moved)
