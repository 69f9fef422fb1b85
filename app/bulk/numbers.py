"""Columns of numbers as one array, without a Python object per row or per number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from app.codecs.values import INEXACT
from app.types import Array
from models.tensors import TensorSpec


def numbers_of(spec: TensorSpec, column: Any) -> tuple[Array, Array] | None:
    """The rows of a column in the dtype and shape of an input, and a mask of the valid ones.

    The codec reads the other rows: it explains their errors, or accepts other forms.

    Args:
        spec: the input.
        column: a NumPy array, or an Arrow array of lists (flat or nested) or of the item's bytes.

    Returns:
        array [n, *item_shape], and a mask [n]; None if these are not numbers of one shape.
    """
    if not spec.is_fixed or spec.dtype == "bool":
        return None
    numbers: tuple[Array, Array] | None
    if isinstance(column, np.ndarray):
        if column.dtype.kind not in "fiu":
            return None
        numbers = column.reshape(len(column), *spec.item_shape), np.ones(len(column), bool)
    elif isinstance(column, pa.Array) and pa.types.is_fixed_size_binary(column.type):
        numbers = _octets(spec, column)
        if numbers is None:
            return None
    elif isinstance(column, pa.Array):
        leaves = _leaves(spec, column)
        if leaves is None:
            return None
        numbers = leaves
    else:
        return None
    return _convert(spec, *numbers)


def vector_of(spec: TensorSpec, columns: Sequence[Any]) -> tuple[Array, Array] | None:
    """The rows of several columns, each with one number of a vector; see `numbers_of`."""
    arrays, good = [], []
    for column in columns:
        numbers = numbers_of(element_of(spec), column)
        if numbers is None:
            return None
        arrays.append(numbers[0])
        good.append(numbers[1])
    return np.stack(arrays, axis=1), np.logical_and.reduce(good)


def element_of(spec: TensorSpec) -> TensorSpec:
    """One number of an input."""
    return spec.model_copy(update={"shape": (-1,), "dimensions": ()})


def _octets(spec: TensorSpec, column: Any) -> tuple[Array, Array] | None:
    """Rows of little-endian bytes, as in `application/octet-stream`."""
    size = spec.item_bytes
    if column.type.byte_width != size or column.null_count or not len(column):
        return None
    data = column.buffers()[1]
    little = np.dtype(spec.dtype).newbyteorder("<")
    items = size // little.itemsize
    flat = np.frombuffer(data, little, len(column) * items, column.offset * size)
    return flat.reshape(len(column), *spec.item_shape), np.ones(len(column), bool)


def _leaves(spec: TensorSpec, column: Any) -> tuple[Array, Array] | None:
    size = math.prod(spec.item_shape)
    depth, kind = 0, column.type
    while is_list(kind):
        depth, kind = depth + 1, kind.value_type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return None
    count = len(column)
    good = np.ones(count, bool)
    if depth == 1 and spec.item_shape:
        lengths = _lengths(column)
        good = lengths == size
        if not good.all():
            column = column.filter(pa.array(good))
        leaves = column.flatten()
    elif depth == len(spec.item_shape):
        leaves = column
        for axis in spec.item_shape:
            if (_lengths(leaves) != axis).any():
                return None
            leaves = leaves.flatten()
    else:
        return None
    if leaves.null_count and not spec.nan:
        return None
    numbers = leaves.to_numpy(zero_copy_only=False)
    if good.all():
        return numbers.reshape(count, *spec.item_shape), good
    whole = np.zeros((count, *spec.item_shape), numbers.dtype)
    whole[good] = numbers.reshape(-1, *spec.item_shape)
    return whole, good


def without_decimals(column: Any) -> Any:
    """A column of Arrow decimals, flat or in lists, as floats; any other column as it is."""
    if not isinstance(column, pa.Array) or not pa.types.is_decimal(_leaf(column.type)):
        return column
    return column.cast(_of_floats(column.type))


def can_fit(spec: TensorSpec, kind: Any) -> bool:
    """Whether items of an Arrow type can be those of an input, judged by the type alone.

    True for types that may have JSON, a name or a file, such as texts, and for lists of any length.
    """
    if pa.types.is_fixed_size_binary(kind):
        return not spec.is_fixed or kind.byte_width == spec.item_bytes
    sizes: list[int | None] = []
    while is_list(kind):
        sizes.append(kind.list_size if pa.types.is_fixed_size_list(kind) else None)
        kind = kind.value_type
    if pa.types.is_temporal(kind) or pa.types.is_map(kind):
        return False
    if pa.types.is_boolean(kind) and spec.dtype != "bool":
        return False
    if not (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_boolean(kind)
    ):
        return True
    if len(sizes) == 1 and spec.is_fixed and spec.item_shape:
        return sizes[0] in (None, math.prod(spec.item_shape))
    sizes_and_axes = zip(sizes, spec.axes, strict=False)
    return len(sizes) == len(spec.axes) and all(
        size is None or axis.least <= size <= axis.most for size, axis in sizes_and_axes
    )


def has_numbers(kind: Any) -> bool:
    """Whether a column of an Arrow type can probably be read as a whole."""
    return is_list(kind) or bool(pa.types.is_fixed_size_binary(kind))


def writable(array: Array) -> Array:
    """The array, or a copy if it is not writable, such as Arrow's arrays."""
    return array if array.flags.writeable else array.copy()


def is_list(kind: Any) -> bool:
    """Whether an Arrow type is a list type."""
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _of_floats(kind: Any) -> Any:
    if not is_list(kind):
        return pa.float64()
    inner = _of_floats(kind.value_type)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(inner, kind.list_size)
    return pa.large_list(inner) if pa.types.is_large_list(kind) else pa.list_(inner)


def _leaf(kind: Any) -> Any:
    while is_list(kind):
        kind = kind.value_type
    return kind


def _lengths(column: Any) -> Array:
    """The length of each list; -1 for null."""
    lengths = pc.list_value_length(column)
    return np.asarray(lengths.fill_null(-1).to_numpy(zero_copy_only=False))


def _convert(spec: TensorSpec, numbers: Array, good: Array) -> tuple[Array, Array]:
    """The numbers in the input's dtype; rows that would change or are out of range are not good."""
    dtype = np.dtype(spec.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        array = np.ascontiguousarray(numbers, dtype)
        rows = array.reshape(len(array), -1)
        if spec.nan:
            right = ~np.isinf(rows).any(axis=1)
        elif dtype.kind == "f":
            # A sum is not finite if any number is not, and is faster than checking each.
            wide = np.float32 if dtype.itemsize == 2 else dtype
            right = np.isfinite(rows.sum(axis=1, dtype=wide))
        else:
            whole = np.iinfo(dtype)
            least = whole.min if spec.minimum is None else spec.minimum
            most = whole.max if spec.maximum is None else spec.maximum
            right = ((rows >= least) & (rows <= most)).all(axis=1)
            if numbers.dtype != dtype:
                originals = numbers.reshape(len(array), -1)
                right &= (rows == originals).all(axis=1)
                if originals.dtype.kind == "f":
                    right &= (abs(originals) < INEXACT).all(axis=1)
    return array, good & right
