"""Reads the numbers of an infer request by machine code, if it is compiled.

orjson reads every other body, valid or not, and can explain errors.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import orjson

from app.codecs.datatypes import DTYPES
from app.codecs.numbers import NATIVE_DTYPES, NATIVE_READER, ReadFloats

DATA = re.compile(rb'"data"\s*:\s*(?=\[)')
MARK = 5_946_158_883_012_311_201  # stands for the numbers while the rest is read
WRITTEN = b"%d" % MARK
MOST_REST = 4096  # bytes of it


def load(body: bytes, read: ReadFloats | None = NATIVE_READER) -> dict[str, Any] | None:
    """The document of a body with one input of floats, whose data is a flat array of its dtype.

    The list after the first "data" is replaced by a number: if this number is then the input's
    data, the list was its data, and not, for example, part of a text.

    Args:
        body: the whole body.
        read: the reader of floats.

    Returns:
        None if the body is not such JSON, or must be read in another way.
    """
    found = DATA.search(body, 0, MOST_REST) if read is not None else None
    if read is None or found is None:
        return None
    start = found.end()
    ends = [end for end in (body.find(b"}", start), body.find(b'"', start)) if end >= 0]
    numbers = body[start : min(ends, default=start)].rstrip().removesuffix(b",").rstrip()
    rest = body[start + len(numbers) :]
    if len(rest) > MOST_REST or WRITTEN in rest or WRITTEN in body[:start]:
        return None
    try:
        document = orjson.loads(body[:start] + WRITTEN + rest)
        (tensor,) = document["inputs"]
        dtype, shape = np.dtype(DTYPES[tensor["datatype"]]), tuple(tensor["shape"])
        if tensor["data"] != MARK or dtype.name not in NATIVE_DTYPES:
            return None
        floats = read(b'{"":%b}' % numbers, "", "", shape, None, dtype.itemsize == 8)
    except (ValueError, KeyError, TypeError, OverflowError):
        return None
    if floats is None:
        return None
    tensor["data"] = np.frombuffer(floats, dtype)
    result: dict[str, Any] = document
    return result
