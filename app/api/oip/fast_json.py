"""Loads the JSON of an infer request without a Python object for each number.

A slower parser reads every other body, valid or not, and can explain errors. The cost of a body is
bounded by its numbers, because nothing else that is long is read.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
import simdjson

from app.api.oip.datatypes import DTYPES
from app.api.oip.requests import MAX_RANK, MAX_TENSORS
from app.codecs.numbers import MAX_KEPT_BYTES, OPENING, OTHERWISE, count_of, flattened, has_sizes
from app.types import Array

MAX_KEYS = 16  # of any object: a look-up passes all keys before the wanted one
READ = frozenset(("id", "parameters", "outputs"))  # in addition to inputs; others are ignored


class Caster(Protocol):
    """The part of a codec that is used here."""

    def cast_numbers(self, name: str, numbers: Array) -> Array | None:
        """See `app.codecs.base.Codec`."""


class FastJson:
    """Loads bodies on the event loop; its parser can serve only one body at a time."""

    def __init__(self) -> None:
        self._parser = simdjson.Parser()

    def load(self, body: bytes, caster: Caster) -> dict[str, Any] | None:
        """The document, where the data of each tensor is a flat array of its dtype.

        None if the body is not such JSON, or must be read in another way.
        """
        if not body.isascii():  # simdjson would skip a byte order mark, which JSON forbids
            return None
        parser = self._parser if len(body) <= MAX_KEPT_BYTES else simdjson.Parser()
        lists = count_of(np.frombuffer(body, np.uint8), OPENING)
        try:
            return _document(parser.parse(body), lists, caster)
        except OTHERWISE:
            return None


def _document(whole: Any, lists: int, caster: Caster) -> dict[str, Any] | None:
    """The document, if its only lists are the inputs, their shapes and data, and the outputs."""
    keys = _keys(whole)
    given = whole["inputs"]
    if not isinstance(given, simdjson.Array) or len(given) > MAX_TENSORS:
        return None
    inputs = [_input(each, lists, caster) for each in given]
    wanted = "outputs" in keys and isinstance(whole["outputs"], simdjson.Array)
    found = 1 + wanted + sum(nested for _, nested in inputs)
    if found != lists:
        return None
    document = {key: _plain(whole[key]) for key in keys if key in READ}
    document["inputs"] = [each for each, _ in inputs]
    return document


def _input(given: Any, lists: int, caster: Caster) -> tuple[dict[str, Any], int]:
    """An input, and the number of its lists.

    Raises:
        ValueError, KeyError, TypeError, RuntimeError: if it is not a regular input of numbers.
    """
    tensor = {key: _plain(given[key]) for key in _keys(given) if key != "data"}
    data, shape = given["data"], tensor["shape"]
    dtype = np.dtype(DTYPES[tensor["datatype"]])
    if dtype.kind == "b" or not isinstance(data, simdjson.Array):
        raise ValueError("bools, or no list")
    if not 0 < len(shape) <= MAX_RANK:
        raise ValueError("no axes, or too many")
    if len(data) == math.prod(shape):  # flat, if the body has no other lists
        own = 1
    else:
        own, rows = 0, 1
        for size in shape:
            own += rows
            rows *= size
        if own > lists or not has_sizes(data, shape):
            raise ValueError("irregular nesting")
    numbers = flattened(data, dtype)
    if numbers.size != math.prod(shape):
        raise ValueError("another number of elements")
    cast = caster.cast_numbers(tensor["name"], numbers)
    if cast is None or cast.dtype != dtype:
        raise ValueError("not the model's input, or not exact in its dtype")
    return {**tensor, "data": cast}, 1 + own


def _keys(given: Any) -> list[str]:
    """The keys of an object.

    Raises:
        ValueError: if it is not an object, or has too many keys or a duplicate.
    """
    if not isinstance(given, simdjson.Object) or len(given) > MAX_KEYS:
        raise ValueError("no object, or too many keys")
    keys = list(given)
    if len(set(keys)) != len(keys):  # simdjson uses the first value, orjson the last
        raise ValueError("a duplicate key")
    return keys


def _plain(value: Any, depth: int = 3) -> Any:
    """A short value as Python objects: none of the parser's objects may leave this module.

    Raises:
        ValueError: if it is long or deep.
    """
    if isinstance(value, simdjson.Object) and depth:
        return {key: _plain(value[key], depth - 1) for key in _keys(value)}
    if isinstance(value, simdjson.Array) and depth and len(value) <= MAX_TENSORS:
        return [_plain(each, depth - 1) for each in value]
    if isinstance(value, simdjson.Object | simdjson.Array):
        raise ValueError("long or deep")
    return value
