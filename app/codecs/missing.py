"""Missing values: NaN in arrays, null in JSON."""

from __future__ import annotations

import numpy as np

from app.types import Array

NAN, NULL = b"NaN", b"null"
MAX_IN_STRINGS = 1000  # more words than values: the text is not JSON, and splitting takes memory


def nan_as_null(text: bytes) -> bytes:
    """JSON with null in place of NaN, which Python writes although it is not valid JSON.

    Strings are unchanged, and so is a text with far more of these words than values.
    """
    if NAN not in text:
        return text
    values = text.count(b",") + text.count(b"[") + text.count(b":") + 1
    if text.count(NAN) > values + MAX_IN_STRINGS:
        return text
    first, *rest = text.split(NAN)
    pieces, quotes = [first], _quotes(first)
    for piece in rest:
        pieces += (NAN if quotes & 1 else NULL, piece)
        quotes += _quotes(piece)
    return b"".join(pieces)


def _quotes(piece: bytes) -> int:
    """The number of quotes that begin or end a string."""
    if b"\\" in piece:
        piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
    return piece.count(b'"')


def one_nan(array: Array) -> Array:
    """An array of floats whose NaN all have the same bits, so that equal items have equal keys."""
    missing = np.isnan(array)
    return np.where(missing, array.dtype.type(np.nan), array) if missing.any() else array
