"""Request bodies of predictions, for the OpenAPI document.

For a named model the description is general; for a loaded default model it is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.api.multipart import FORM
from app.codecs.audio import SOUNDS
from app.codecs.base import JSON, NPY, NPZ, OCTET_STREAM, TEXT
from app.codecs.image import PICTURES
from app.codecs.item_schema import JsonSchema

FILE: JsonSchema = {"type": "string", "format": "binary"}
JSON_PART: JsonSchema = {"type": "string", "description": "this input as JSON"}
BINARY: JsonSchema = {"schema": FILE}
ANY_ITEM: JsonSchema = {
    "description": "One item: numbers (nested or flat), a text, a base64 picture or sound, or an "
    "object",
    "anyOf": [
        {"type": "array", "items": {}},
        {"type": "string"},
        {"type": "object", "additionalProperties": True},
        {"type": "number"},
        {"type": "boolean"},
    ],
}
# Several items in the contracts of platforms: by row, and by the names of inputs.
ITEMS: JsonSchema = {"type": "array", "items": ANY_ITEM, "minItems": 1}
COLUMNS: JsonSchema = {
    "type": "object",
    "description": "a list of values for each input by name",
    "additionalProperties": {"type": "array", "items": {}},
}


ANY_MEDIA_TYPES = (OCTET_STREAM, NPY, NPZ, *PICTURES.types, *SOUNDS.types, TEXT)


def request_name(prefix: str = "", *, many: bool) -> str:
    """The schema name of a JSON body, which generated clients use."""
    return f"{prefix}{'BatchPredict' if many else 'Predict'}Request"


def request_schema(
    item: JsonSchema = ANY_ITEM, max_items: int | None = None, *, many: bool
) -> dict[str, Any]:
    """A JSON body of one item or of many."""
    name, value = "input", item
    if many:
        name, value = "inputs", {"type": "array", "items": item, "minItems": 1}
        if max_items is not None:
            value = {**value, "maxItems": max_items}
    return {
        "type": "object",
        "properties": {name: value},
        "required": [name],
        "additionalProperties": False,
    }


def request_body(
    name: str,
    media_types: Sequence[str],
    max_items: int | None = None,
    *,
    many: bool,
    parts: Sequence[str] = (),
) -> dict[str, Any]:
    """A request body: JSON, by its schema's name, and the other media types.

    With `parts`, a form is one item, of which the first part is a file.

    The description names every media type. Media types that client generators do not know appear
    nowhere else: generators would warn about each, or omit the call.
    """
    content: dict[str, Any] = {JSON: {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    if OCTET_STREAM in media_types:
        content[OCTET_STREAM] = BINARY
    if parts and not many:
        properties = {parts[0]: FILE, **dict.fromkeys(parts[1:], JSON_PART)}
        content[FORM] = {
            "schema": {
                "type": "object",
                "properties": properties,
                "required": list(parts),
                "additionalProperties": False,
            }
        }
    elif media_types and not parts:
        content[FORM] = {
            "schema": _form(many=many, max_items=max_items),
            "encoding": {"file": {"contentType": ", ".join(media_types)}},
        }
    bodies = [each for each in media_types if not (many and each == TEXT)]
    told = ["JSON", *([f"bytes as {', '.join(bodies)}"] if bodies else [])]
    return {"required": True, "description": ", or ".join(told), "content": content}


def _form(*, many: bool, max_items: int | None) -> dict[str, Any]:
    """Files, each of which is an item; the server ignores the field's name."""
    file: dict[str, Any] = {
        **FILE,
        "minLength": 1,
        "description": "a file of any type that the model accepts",
    }
    if many:
        most = {} if max_items is None else {"maxItems": max_items}
        file = {"type": "array", "items": file, "minItems": 1, **most}
    return {
        "type": "object",
        "properties": {"file": file},
        "required": ["file"],
        "additionalProperties": False,
    }
