"""Missing values: NaN in arrays, null in JSON."""

from __future__ import annotations

import re

import numpy as np

from app.types import Array

NAN = b"NaN"
# A string that does not end is one too: looking for its end again and again would take long.
STRING_OR_NAN = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|NaN', re.DOTALL)


def nan_as_null(text: bytes) -> bytes:
    """JSON with null in place of NaN, which Python writes although it is no JSON.

    Strings are unchanged.
    """
    return STRING_OR_NAN.sub(_null_for_nan, text) if NAN in text else text


def _null_for_nan(found: re.Match[bytes]) -> bytes:
    token: bytes = found[0]
    return b"null" if token == NAN else token


def one_nan(array: Array) -> Array:
    """An array of floats whose NaN all have the same bits, so that equal items have equal keys."""
    missing = np.isnan(array)
    return np.where(missing, array.dtype.type(np.nan), array) if missing.any() else array
