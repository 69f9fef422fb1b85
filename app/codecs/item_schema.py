"""JSON Schema of one item, as exact as JSON Schema allows.

It cannot express that lists with free axes must not be ragged, that axes with the same name have
the same size, that numbers are less than a size, or what a base64 picture is. A long list of
categories is left out.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from models.tensors import TensorSpec

JsonSchema = Mapping[str, Any]
PLAIN: Mapping[str, JsonSchema] = MappingProxyType({})


def tensor_item(
    inputs: Sequence[TensorSpec],
    values: Mapping[str, JsonSchema] = PLAIN,
    optional: Collection[str] = (),
) -> JsonSchema:
    """Schema of a tensor item: an object by input name, or with one input also just numbers.

    Args:
        inputs: of the model.
        values: input name -> schema of one value, of inputs that are not only numbers.
        optional: inputs that an item may lack.
    """
    by_name = {
        "type": "object",
        "properties": {
            spec.name: _one_of(_forms(spec, values, alone=len(inputs) == 1)) for spec in inputs
        },
        "required": [spec.name for spec in inputs if spec.name not in optional],
        "additionalProperties": False,
    }
    return (
        _one_of([*_forms(inputs[0], values, alone=True), by_name]) if len(inputs) == 1 else by_name
    )


def _forms(spec: TensorSpec, values: Mapping[str, JsonSchema], *, alone: bool) -> list[JsonSchema]:
    """The schema as nested lists, and also flat if the only input has a fixed shape."""
    number = values.get(spec.name) or number_schema(spec)
    nested = dict(number)
    for axis in reversed(spec.axes):
        nested = {
            "type": "array",
            "items": nested,
            "minItems": axis.least,
            "maxItems": axis.most,
        }
        if axis.name is not None:
            nested["description"] = (
                f"{axis.name}: has the same size wherever this name occurs in an item"
            )
    if not alone or not spec.is_fixed or len(spec.item_shape) == 1:
        return [nested]
    size = math.prod(spec.item_shape)
    return [nested, {"type": "array", "items": number, "minItems": size, "maxItems": size}]


def number_schema(spec: TensorSpec) -> JsonSchema:
    """Schema of one number of an input."""
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "b":
        return {"anyOf": [{"type": "boolean"}, {"type": "integer", "minimum": 0, "maximum": 1}]}
    if dtype.kind == "f":
        most = float(np.finfo(dtype).max)
        floats: dict[str, Any] = {"type": "number", "minimum": -most, "maximum": most}
        if spec.nan:
            floats |= {"type": ["number", "null"], "description": "null: the value is missing"}
        return floats
    whole = np.iinfo(dtype)
    least = int(whole.min) if spec.minimum is None else spec.minimum
    most = int(whole.max) if spec.maximum is None else spec.maximum
    number: dict[str, Any] = {"type": "integer", "minimum": least, "maximum": most}
    if spec.below is not None:
        number["description"] = f"less than the size {spec.below} of the item"
    return number


def _one_of(forms: Sequence[JsonSchema]) -> JsonSchema:
    return forms[0] if len(forms) == 1 else {"anyOf": list(forms)}
