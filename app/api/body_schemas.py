"""What a prediction's body may be, for the OpenAPI document.

Of a named model it is known in general only; of the default model exactly, as long as it is loaded.
"""

from __future__ import annotations

from typing import Any

from app.api.payloads import JSON
from app.codecs.base import NPY, OCTET_STREAM, Codec
from app.codecs.image import PICTURES
from app.codecs.item_schema import JsonSchema

BINARY: JsonSchema = {"schema": {"type": "string", "format": "binary"}}
ANY_ITEM: JsonSchema = {
    "description": "One item: numbers, nested or flat; a base64 picture; an object by name",
    "anyOf": [
        {"type": "array", "items": {}},
        {"type": "string"},
        {"type": "object", "additionalProperties": True},
        {"type": "number"},
        {"type": "boolean"},
    ],
}


def any_body(*, many: bool) -> dict[str, Any]:
    """For whatever model the path names."""
    return _body(ANY_ITEM, (OCTET_STREAM, NPY, *PICTURES), many=many)


def body_for(codec: Codec, max_items: int, *, many: bool) -> dict[str, Any]:
    """For this very model."""
    return _body(codec.item_schema(), codec.media_types, many=many, max_items=max_items)


def _body(
    item: JsonSchema, raw: tuple[str, ...], *, many: bool, max_items: int | None = None
) -> dict[str, Any]:
    name, value = "input", item
    if many:
        name, value = "inputs", {"type": "array", "items": item, "minItems": 1}
        if max_items is not None:
            value = {**value, "maxItems": max_items}
    schema = {
        "type": "object",
        "properties": {name: value},
        "required": [name],
        "additionalProperties": False,
    }
    return {"required": True, "content": {JSON: {"schema": schema}, **dict.fromkeys(raw, BINARY)}}
