"""Reads JSON bodies of regular numbers into one array, without a Python object per number.

The slower decoder reads every other body, valid or not, and can explain errors. Floats are read by
`json_numbers.cpp` if it is compiled, everything else by simdjson.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import simdjson
import structlog

from app.types import Array, Item, Signature
from models.tensors import TensorSpec

LOG = structlog.get_logger(__name__)
# A parser keeps several times the size of its largest body; larger bodies get their own parser.
MAX_KEPT_BYTES = 1 << 20
# Up to here every whole number is exact as float64, so 2 and 2.0 need not be distinguished.
MAX_EXACT = 2.0**53 - 1
# A sum of squares by BLAS is the fastest check: 0.4 us for 1,024 floats; np.isfinite and all take
# 1.2 us. On larger arrays BLAS might start threads.
MAX_PRODUCT_SIZE = 8192
OPENING = np.uint8(ord("["))
COMMA = np.uint8(ord(","))
# simdjson raises these for damaged JSON, another key, non-numbers, and another number type.
OTHERWISE = (ValueError, KeyError, TypeError, RuntimeError)


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


class NumberRange:
    """The numbers that are exact in an input's dtype and within its limits.

    Args:
        spec: the input, of any dtype except bool.
    """

    def __init__(self, spec: TensorSpec) -> None:
        self.dtype = np.dtype(spec.dtype)
        self._least: Any  # int or float; as Any, mypyc does not coerce it
        self._most: Any
        if self.dtype.kind == "f":
            self._most = min(MAX_EXACT, float(np.finfo(self.dtype).max))
            self._least = -self._most
        else:
            whole = np.iinfo(self.dtype)
            self._least = whole.min if spec.minimum is None else spec.minimum
            self._most = whole.max if spec.maximum is None else spec.maximum

    def cast(self, numbers: Array) -> Array | None:
        """These float64 or int64 numbers in the dtype; None if the written numbers may differ."""
        if not numbers.size:
            return numbers.astype(self.dtype)
        few = numbers.size <= MAX_PRODUCT_SIZE and numbers.dtype.kind == "f"
        # The sum is at least as large as every square, even when rounded.
        if few and np.vdot(numbers, numbers) < self._most * self._most:
            return numbers.astype(self.dtype, copy=False)
        if numbers.min() < self._least or numbers.max() > self._most:
            return None
        return numbers.astype(self.dtype, copy=False)


class NumberReader:
    """Reads `{key: item}`, where the item may be `{name: item}`, and `{key: [item, ...]}`.

    Args:
        spec: the model's only input, for which `can_read` is true.
        read_floats: reads float32 and float64; None if simdjson reads all.
    """

    def __init__(self, spec: TensorSpec, read_floats: ReadFloats | None = NATIVE_READER) -> None:
        self._dtype = np.dtype(spec.dtype)
        self._read_floats = read_floats if spec.dtype in ("float32", "float64") else None
        self._is_wide = spec.dtype == "float64"
        self._item_bytes = spec.item_bytes
        self._name = spec.name
        self._shape = spec.item_shape
        self.signature: Signature = ((spec.name, self._dtype.str, spec.item_shape),)
        self._flat = (math.prod(self._shape),)
        # A list of 2 lists of 3 numbers: 1 + 2 lists.
        self._lists = sum(math.prod(self._shape[:depth]) for depth in range(len(self._shape)))
        self._range = NumberRange(spec)
        self._parser = simdjson.Parser()

    @staticmethod
    def can_read(spec: TensorSpec) -> bool:
        """Whether an input's items are numbers with one fixed shape."""
        return spec.is_fixed and spec.dtype != "bool"

    def items(self, key: str, body: bytes, max_items: int | None) -> list[Item] | None:
        """The items of a body, as `read` reads them."""
        stacked = self.read(key, body, max_items)
        return None if stacked is None else rows(self._name, stacked, self.signature)

    def read(self, key: str, body: bytes, max_items: int | None) -> Array | None:
        """The items of a body, stacked; None if it is invalid, or valid in another form.

        Args:
            key: the only key of the body's object.
            body: the whole body.
            max_items: None if the value is one item, not a list of items.

        Returns:
            Array [n, *item_shape] of the input's dtype, where n is 1 if `max_items` is None.
        """
        if self._read_floats is not None:
            shape = self._shape
            floats = self._read_floats(body, key, self._name, shape, max_items, self._is_wide)
            if floats is not None:
                return np.ndarray((len(floats) // self._item_bytes, *shape), self._dtype, floats)
        return self._parsed(key, body, max_items)

    def _parsed(self, key: str, body: bytes, max_items: int | None) -> Array | None:
        """What `read` returns, parsed by simdjson."""
        if not body.isascii():  # simdjson would skip a byte order mark, which JSON forbids
            return None
        octets = np.frombuffer(body, np.uint8)
        lists = count_of(octets, OPENING)
        if lists < min(self._lists, 1) + (max_items is not None):
            return None  # for example, pictures
        if self._is_too_much(octets, lists, max_items or 1):
            return None
        if max_items is not None and body.rfind(b"{") > body.find(b"{"):
            return None  # items that are objects
        numbers = self._numbers(key, body, lists, max_items)
        cast = None if numbers is None else self._range.cast(numbers)
        return None if cast is None else cast.reshape(-1, *self._shape)

    def _is_too_much(self, octets: Array, lists: int, items: int) -> bool:
        """Whether a body has too many items: parsing needs twelve times its bytes."""
        if lists > 1 + max(self._lists, 1) * items:
            return True
        if len(octets) <= MAX_KEPT_BYTES:
            return False
        return count_of(octets, COMMA) >= self._flat[0] * items

    def _numbers(self, key: str, body: bytes, lists: int, max_items: int | None) -> Array | None:
        """All numbers of a well-structured body, in order, as float64 or int64.

        A parser is busy while any object that it returned is alive: none may leave this method.
        """
        parser = self._parser if len(body) <= MAX_KEPT_BYTES else simdjson.Parser()
        try:
            whole = parser.parse(body)
            # For a duplicate key, simdjson uses the first value and orjson the last.
            if not isinstance(whole, simdjson.Object) or len(whole) != 1:
                return None
            value = whole[key]
            if isinstance(value, simdjson.Object) and len(value) == 1:
                value = value[self._name]
            if not isinstance(value, simdjson.Array):
                return None
            sizes = self._sizes(lists, len(value), max_items)
            # The sizes account for all lists of the body, so the innermost lists contain no lists.
            if sizes is None or not has_sizes(value, sizes):
                return None
            numbers = flattened(value, self._dtype)
        except OTHERWISE:
            return None
        # simdjson counts at most 2**24 - 1 elements of a list.
        return numbers if numbers.size == math.prod(sizes) else None

    def _sizes(self, lists: int, length: int, max_items: int | None) -> tuple[int, ...] | None:
        """Sizes of the only nesting, plain or flat, with this many lists; None if there is none.

        Args:
            lists: number of lists in the whole body.
            length: length of the outermost list.
            max_items: as for `read`.
        """
        if max_items is None:
            return {1: self._flat, self._lists: self._shape}.get(lists)
        if not 0 < length <= max_items:
            return None
        plain, flat = (length, *self._shape), (length, *self._flat)
        return {1 + length: flat, 1 + length * self._lists: plain}.get(lists)


def rows(name: str, stacked: Array, signature: Signature) -> list[Item]:
    """One item per row, each a view: the whole array lives as long as any item."""
    if len(stacked) == 1:
        return [Item({name: stacked[0, ...]}, signature)]
    if stacked.ndim == 1:  # iterating would give numbers, not arrays without axes
        return [Item({name: stacked[index, ...]}, signature) for index in range(len(stacked))]
    return [Item({name: row}, signature) for row in stacked]


def flattened(value: Any, dtype: np.dtype[Any]) -> Array:
    """All numbers of a list, at any nesting: float64 for a float dtype, else int64.

    Args:
        value: a simdjson.Array; its stubs type a buffer as bytes, which compiled code would check.
        dtype: the input's dtype.

    Raises:
        RuntimeError, TypeError, ValueError: if a value is not a number of that kind.
    """
    if dtype.kind == "f":
        return np.frombuffer(value.as_buffer(of_type="d"), np.float64)
    return np.frombuffer(value.as_buffer(of_type="i"), np.int64)


def count_of(octets: Array, octet: np.uint8) -> int:
    """How often an octet occurs."""
    # Not ==: the fuzzer's instrumentation would keep every result.
    return int(np.count_nonzero(np.equal(octets, octet)))


def has_sizes(nested: Sequence[Any], sizes: Sequence[int]) -> bool:
    """Whether lists are nested with exactly these sizes; the innermost values are not examined.

    Raises:
        TypeError: if a list is expected and a number is found.
    """
    if len(nested) != sizes[0]:
        return False
    if len(sizes) <= 2:
        return len(sizes) == 1 or set(map(len, nested)) == {sizes[1]}
    return all(has_sizes(each, sizes[1:]) for each in nested)


def is_finite(array: Array) -> bool:
    """Whether an array of floats has neither NaN nor infinity."""
    # A sum that overflows proves nothing.
    if array.size <= MAX_PRODUCT_SIZE and np.vdot(array, array) < math.inf:
        return True
    return bool(np.isfinite(array).all())
