"""Loads the JSON of an infer request without a Python object for each number.

Any other body, valid or not, is left to a slower parser, which can explain errors.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import simdjson

from app.api.oip.datatypes import DTYPES
from app.codecs.numbers import MAX_KEPT_BYTES, OPENING, OTHERWISE, count_of, flattened, has_sizes


class FastJson:
    """Loads bodies on the event loop; it has a parser that only one body at a time may use."""

    def __init__(self) -> None:
        self._parser = simdjson.Parser()

    def load(self, body: bytes) -> dict[str, Any] | None:
        """The document, where the data of each tensor of numbers is a flat array.

        None: the body is no such JSON, or one that must be read in another way.
        """
        if not body.isascii():  # simdjson would skip a byte order mark, which JSON forbids
            return None
        parser = self._parser if len(body) <= MAX_KEPT_BYTES else simdjson.Parser()
        try:
            return _document(parser.parse(body), count_of(np.frombuffer(body, np.uint8), OPENING))
        except OTHERWISE:
            return None


def _document(whole: Any, lists: int) -> dict[str, Any] | None:
    """The document, if all of its lists are those of inputs, their shapes and data, and outputs."""
    if not isinstance(whole, simdjson.Object):
        return None
    given = whole["inputs"]
    if not isinstance(given, simdjson.Array):
        return None
    document = {key: _plain(whole[key]) for key in whole if key != "inputs"}
    inputs = [_input(each) for each in given]
    document["inputs"] = [each for each, _ in inputs]
    # For a duplicate key simdjson takes the first value, orjson the last.
    if len(document) != len(whole):
        return None
    found = 1 + ("outputs" in document) + sum(nested for _, nested in inputs)
    return document if found == lists else None


def _input(given: Any) -> tuple[dict[str, Any], int]:
    """An input, and the number of its lists.

    Raises:
        ValueError, KeyError, TypeError, RuntimeError: it is not one of numbers, in a regular form.
    """
    tensor = {key: _plain(given[key]) for key in given if key != "data"}
    dtype = np.dtype(DTYPES[tensor["datatype"]])
    data = given["data"]
    shape = tensor["shape"]
    if len(tensor) + 1 != len(given) or dtype.kind == "b" or not isinstance(data, simdjson.Array):
        raise ValueError("a duplicate key, bools, or no list")
    numbers = flattened(data, dtype)
    if numbers.size != math.prod(shape):
        raise ValueError("another number of elements")
    if len(data) == numbers.size:  # flat, if no other list is in the body
        lists = 1
    else:
        lists = sum(math.prod(shape[:depth]) for depth in range(len(shape)))
        if not has_sizes(data, shape):
            raise ValueError("irregular nesting")
    return {**tensor, "data": numbers}, 1 + lists


def _plain(value: Any) -> Any:
    """A value as Python has it: no part of the parser's may leave this module."""
    if isinstance(value, simdjson.Object):
        return value.as_dict()
    if isinstance(value, simdjson.Array):
        return value.as_list()
    return value
