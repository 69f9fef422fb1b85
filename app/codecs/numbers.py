"""Reads JSON bodies of regular floats into one array, without a Python object per number.

Only with `json_numbers.cpp`, if it is compiled. orjson reads every other body, valid or not, and
can explain errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import structlog

from app.types import Array, Item, Signature
from models.tensors import TensorSpec

LOG = structlog.get_logger(__name__)
NATIVE_DTYPES = ("float32", "float64")
# A sum of squares by BLAS is the fastest check: 0.4 us for 1,024 floats; np.isfinite and all take
# 1.2 us. On larger arrays BLAS might start threads.
MAX_PRODUCT_SIZE = 8192

# `read` of json_numbers.pyi.
ReadFloats: TypeAlias = Callable[[bytes, str, str, tuple[int, ...], int | None, bool], bytes | None]


def native_reader() -> ReadFloats | None:
    """The reader of floats in C++, if it has been compiled."""
    try:
        from app.codecs.json_numbers import read  # noqa: PLC0415
    except ModuleNotFoundError:
        return None
    except ImportError:  # compiled for another machine
        LOG.exception("native_reader_not_loaded")
        return None
    return read


NATIVE_READER = native_reader()


class NumberReader:
    """Reads `{key: item}`, where the item may be `{name: item}`, and `{key: [item, ...]}`.

    Args:
        spec: the model's only input, for which `can_read` is true.
        read_floats: the reader in C++.
    """

    def __init__(self, spec: TensorSpec, read_floats: ReadFloats) -> None:
        self._dtype = np.dtype(spec.dtype)
        self._read_floats = read_floats
        self._is_wide = spec.dtype == "float64"
        self._item_bytes = spec.item_bytes
        self._name = spec.name
        self._shape = spec.item_shape
        self.signature: Signature = ((spec.name, self._dtype.str, spec.item_shape),)

    @staticmethod
    def can_read(spec: TensorSpec) -> bool:
        """Whether an input's items are floats with one fixed shape."""
        return spec.is_fixed and spec.dtype in NATIVE_DTYPES

    def items(self, key: str, body: bytes, max_items: int | None) -> list[Item] | None:
        """The items of a body; None if it is invalid, or valid in another form.

        Args:
            key: the only key of the body's object.
            body: the whole body.
            max_items: None if the value is one item, not a list of items.
        """
        shape = self._shape
        floats = self._read_floats(body, key, self._name, shape, max_items, self._is_wide)
        if floats is None:
            return None
        stacked = np.ndarray((len(floats) // self._item_bytes, *shape), self._dtype, floats)
        return rows(self._name, stacked, self.signature)


def rows(name: str, stacked: Array, signature: Signature) -> list[Item]:
    """One item per row, each a view: the whole array lives as long as any item."""
    if len(stacked) == 1:
        return [Item({name: stacked[0, ...]}, signature)]
    if stacked.ndim == 1:  # iterating would give numbers, not arrays without axes
        return [Item({name: stacked[index, ...]}, signature) for index in range(len(stacked))]
    return [Item({name: row}, signature) for row in stacked]


def is_finite(array: Array) -> bool:
    """Whether an array of floats has neither NaN nor infinity."""
    # A sum that overflows proves nothing.
    if array.size <= MAX_PRODUCT_SIZE and np.vdot(array, array) < math.inf:
        return True
    return bool(np.isfinite(array).all())
