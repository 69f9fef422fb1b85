"""Loads the JSON of an infer request without a Python object for each number.

Any other body, valid or not, is left to a slower parser, which can explain errors. What a body may
cost here is bounded by its numbers, since nothing else in it is read that is long.
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

MAX_KEYS = 16  # of any object: to look one up takes as long as there are keys before it
READ = frozenset(("id", "parameters", "outputs"))  # next to the inputs; other keys are ignored


class Caster(Protocol):
    """What it needs of a codec."""

    def cast_numbers(self, name: str, numbers: Array) -> Array | None:
        """See `app.codecs.base.Codec`."""


class FastJson:
    """Loads bodies on the event loop; it has a parser that only one body at a time may use."""

    def __init__(self) -> None:
        self._parser = simdjson.Parser()

    def load(self, body: bytes, caster: Caster) -> dict[str, Any] | None:
        """The document, where the data of each tensor is a flat array of its dtype.

        None: the body is no such JSON, or one that must be read in another way.
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
    """The document, if all of its lists are those of inputs, their shapes and data, and outputs."""
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
        ValueError, KeyError, TypeError, RuntimeError: it is not one of numbers, in a regular form.
    """
    tensor = {key: _plain(given[key]) for key in _keys(given) if key != "data"}
    data, shape = given["data"], tensor["shape"]
    dtype = np.dtype(DTYPES[tensor["datatype"]])
    if dtype.kind == "b" or not isinstance(data, simdjson.Array):
        raise ValueError("bools, or no list")
    if not 0 < len(shape) <= MAX_RANK:
        raise ValueError("no axes, or too many")
    if len(data) == math.prod(shape):  # flat, if no other list is in the body
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
        ValueError: it is none, has too many, or one twice.
    """
    if not isinstance(given, simdjson.Object) or len(given) > MAX_KEYS:
        raise ValueError("no object, or too many keys")
    keys = list(given)
    if len(set(keys)) != len(keys):  # simdjson takes the first of them, orjson the last
        raise ValueError("a duplicate key")
    return keys


def _plain(value: Any, depth: int = 3) -> Any:
    """A short value as Python has it: no part of the parser's may leave this module.

    Raises:
        ValueError: it is long or deep.
    """
    if isinstance(value, simdjson.Object) and depth:
        return {key: _plain(value[key], depth - 1) for key in _keys(value)}
    if isinstance(value, simdjson.Array) and depth and len(value) <= MAX_TENSORS:
        return [_plain(each, depth - 1) for each in value]
    if isinstance(value, simdjson.Object | simdjson.Array):
        raise ValueError("long or deep")
    return value
