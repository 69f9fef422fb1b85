"""Draws items of any model, and builds bodies that can vary without changing the correct answer.

Pictures are in `loadtests.traffic.pictures`.
"""

from __future__ import annotations

import io
import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import orjson

from models.bounds import at_sizes, safe_range
from models.tensors import Array, Arrays, TensorSpec

FREE_SIZES = (1, 2, 3, 4, 5, 6, 7, 8)  # sizes for a free dimension, within its bounds
# A body has 2 ** 64 variants if the item is large enough: users that start at random ones do not
# collide.
VARIANTS = 2**64
# The largest change of an input number in either direction, in units in the last place: for an item
# with many numbers 8 of 2 ** 24 (5e-7 of a float32), with few numbers 256 (3e-5), and one for a
# float16, which has only eleven bits.
ULPS, MOST_ULPS = 8, 256
HALF_ULPS = 1
LONG = 64  # a free dimension of an item that must be unique by its integers
# How free axes share a size: by name, by their place if they are aligned, or not at all.
_Size: TypeAlias = str | int | tuple[str, int]
NUMBER = re.compile(rb"-?\d[\d.eE+-]*")


@dataclass(frozen=True, slots=True)
class Template:
    """A body with places, each of which takes one of several byte strings.

    Attributes:
        segments: the bytes before, between and after the places: one more than there are places.
        choices: the byte strings for each place; the first gives the item as drawn.
    """

    segments: tuple[bytes, ...]
    choices: tuple[tuple[bytes, ...], ...]

    @property
    def variants(self) -> int:
        """The number of different bodies."""
        return math.prod(len(options) for options in self.choices)

    def fill(self, number: int) -> bytes:
        """Return the variant with this number; 0 is the item itself, and so is `variants`."""
        parts = [self.segments[0]]
        for options, after in zip(self.choices, self.segments[1:], strict=True):
            number, digit = divmod(number, len(options))
            parts += (options[digit], after)
        return b"".join(parts)


@dataclass(frozen=True, slots=True)
class VaryingNumber:
    """A number in an item that may change slightly.

    Attributes:
        name: of the input.
        index: of the number in the flattened array.
        values: the possible values, in the input's dtype; the first is the original.
    """

    name: str
    index: int
    values: Array


def draw_item(
    specs: Sequence[TensorSpec], rng: np.random.Generator, *, aligned: bool = False
) -> Arrays:
    """Draw normal numbers; integers in the input's range, zeros and ones without a range.

    Args:
        specs: of all inputs.
        rng: draws sizes and numbers.
        aligned: give unnamed free axes with the same place in several inputs one size, which
            related sequences need.
    """
    sizes = dict[_Size, int]()
    bounds = _bounds(specs, aligned=aligned)
    shapes = dict[str, tuple[int, ...]]()
    for spec in specs:
        of_axes = _sizes_of(spec, aligned=aligned)
        for size in of_axes:
            if size is not None and size not in sizes:
                sizes[size] = _draw_size(*bounds[size], rng)
        shapes[spec.name] = tuple(
            n if size is None else sizes[size]
            for n, size in zip(spec.item_shape, of_axes, strict=True)
        )
    masks = _masks(specs)
    return {
        spec.name: np.ones(shapes[spec.name], spec.dtype)
        if spec.name in masks
        else _array(spec, shapes[spec.name], rng)
        for spec in at_sizes(specs, shapes)
    }


def _masks(specs: Sequence[TensorSpec]) -> set[str | None]:
    """Return the inputs that are 1 where an item has data: everywhere in items without padding."""
    return {dimension.mask for spec in specs for dimension in spec.dimensions}


def can_be_aligned(specs: Sequence[TensorSpec]) -> bool:
    """Whether several inputs have an unnamed free axis at the same place."""
    sizes = [size for spec in specs for size in _sizes_of(spec, aligned=True)]
    free = [size for size in sizes if isinstance(size, int)]
    return len(free) > len(set(free))


def places_of(item: Arrays) -> tuple[VaryingNumber, ...]:
    """Return the numbers of an item to change for variants: as few as suffice.

    Returns:
        Places spread over all floating-point numbers; none if there are only integers.
    """
    floats = {name: array for name, array in item.items() if array.dtype.kind == "f"}
    total = sum(array.size for array in floats.values())
    if total == 0:
        return ()
    ulps = HALF_ULPS if any(a.dtype == np.float16 for a in floats.values()) else ULPS
    count = math.ceil(math.log(VARIANTS, 2 * ulps + 1))
    if count > total and ulps != HALF_ULPS:
        ulps_needed = math.ceil(VARIANTS ** (1 / total) / 2)
        ulps = min(MOST_ULPS, ulps_needed)
    spread = np.linspace(0, total - 1, min(count, total)).round().astype(int)
    starts = dict(zip(floats, _starts(floats), strict=True))
    places = list[VaryingNumber]()
    for name, array in floats.items():
        here = spread - starts[name]
        here = here[(here >= 0) & (here < array.size)]
        near = _near(array.reshape(-1)[here], ulps)
        places += map(VaryingNumber, itertools.repeat(name), here.tolist(), near)
    return tuple(places)


def json_template(item: Arrays, places: Sequence[VaryingNumber]) -> Template:
    """Return the item in a JSON body: nested numbers, or an object of them by input name."""
    segments, choices = [b""], list[tuple[bytes, ...]]()
    for position, (name, array) in enumerate(item.items()):
        if len(item) > 1:
            segments[-1] += (b"{" if position == 0 else b",") + orjson.dumps(name) + b":"
        text = _text(array)
        by_index = {place.index: place for place in places if place.name == name}
        after = 0
        for index, match in enumerate(NUMBER.finditer(text) if by_index else ()):
            if index in by_index:
                segments[-1] += text[after : match.start()]
                segments.append(b"")
                choices.append(tuple(_text(by_index[index].values)[1:-1].split(b",")))
                after = match.end()
        segments[-1] += text[after:]
    segments[-1] += b"}" if len(item) > 1 else b""
    return Template(tuple(segments), tuple(choices))


def raw_template(array: Array, places: Sequence[VaryingNumber]) -> Template:
    """Return the item's bytes: little-endian, row-major."""
    little = array.dtype.newbyteorder("<")
    data, size = array.astype(little).tobytes(), array.dtype.itemsize
    segments, after = [], 0
    for place in places:
        segments.append(data[after : place.index * size])
        after = (place.index + 1) * size
    choices = tuple(_pieces(place.values.astype(little).tobytes(), size) for place in places)
    return Template((*segments, data[after:]), choices)


def _pieces(data: bytes, size: int) -> tuple[bytes, ...]:
    return tuple(data[at : at + size] for at in range(0, len(data), size))


def npy_template(array: Array, places: Sequence[VaryingNumber]) -> Template:
    """Return the item as an .npy file."""
    buffer = io.BytesIO()
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    np.lib.format.write_array_header_1_0(buffer, np.lib.format.header_data_from_array_1_0(little))
    raw = raw_template(array, places)
    return Template((buffer.getvalue() + raw.segments[0], *raw.segments[1:]), raw.choices)


def _starts(arrays: Arrays) -> list[int]:
    """Return each array's offset in their concatenation."""
    return [0, *itertools.accumulate(array.size for array in arrays.values())][:-1]


def _near(values: Array, ulps: int) -> Array:
    """Return a row for each value: itself, then its neighbours, up to `ulps` on either side."""
    up, down = [values], [values]
    most = np.array(np.inf, dtype=values.dtype)
    for _ in range(ulps):
        up.append(np.nextafter(up[-1], most))
        down.append(np.nextafter(down[-1], -most))
    return np.stack([*up, *down[1:]], axis=1)


def _text(array: Array) -> bytes:
    text = orjson.dumps(np.ascontiguousarray(array), option=orjson.OPT_SERIALIZE_NUMPY)
    return text if array.ndim else text[1:-1]  # contiguous arrays have at least one axis


def _sizes_of(spec: TensorSpec, *, aligned: bool) -> list[_Size | None]:
    """Return how each axis of an item shares its size; None: it is fixed."""
    return [
        None if size != -1 else axis.name or (at if aligned else (spec.name, at))
        for at, (size, axis) in enumerate(zip(spec.item_shape, spec.axes, strict=True))
    ]


def _bounds(specs: Sequence[TensorSpec], *, aligned: bool) -> dict[_Size, tuple[int, int]]:
    """Return the smallest and largest size that all sharing axes accept."""
    bounds = dict[_Size, tuple[int, int]]()
    for spec in specs:
        for axis, size in zip(spec.axes, _sizes_of(spec, aligned=aligned), strict=True):
            if size is not None:
                least, most = bounds.get(size, (axis.least, axis.most))
                bounds[size] = max(least, axis.least), min(most, axis.most)
    return bounds


def _draw_size(least: int, most: int, rng: np.random.Generator) -> int:
    return max(least, min(int(rng.choice(FREE_SIZES)), most))


def _array(spec: TensorSpec, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "f":
        return np.asarray(rng.standard_normal(shape)).astype(dtype)
    low, high = safe_range(spec)
    return np.asarray(rng.integers(low, max(low, high), shape, endpoint=True)).astype(dtype)


def discrete_numbers(specs: Sequence[TensorSpec]) -> int:
    """Return how many two-valued numbers `discrete_item` has."""
    shapes = _long_shapes(specs)
    return sum(
        math.prod(shapes[spec.name])
        for spec in at_sizes(specs, shapes)
        if spec.name not in _masks(specs) and len(set(safe_range(spec))) > 1
    )


def discrete_item(specs: Sequence[TensorSpec], number: int) -> Arrays:
    """Return an item of integers and booleans: a number's binary digits, the lowest first."""
    item, left = dict[str, Array](), number
    shapes = _long_shapes(specs)
    for spec in at_sizes(specs, shapes):
        shape = shapes[spec.name]
        size = math.prod(shape)
        low, high = (1, 1) if spec.name in _masks(specs) else safe_range(spec)
        digits = [low + (left >> bit & 1) * (high > low) for bit in range(size)]
        item[spec.name] = np.array(digits).reshape(shape).astype(spec.dtype)
        left >>= size if high > low else 0
    return item


def _long_shapes(specs: Sequence[TensorSpec]) -> dict[str, tuple[int, ...]]:
    """Return aligned shapes with free axes as long as needed for many different items."""
    bounds = _bounds(specs, aligned=True)
    return {
        spec.name: tuple(
            n if size is None else max(bounds[size][0], min(LONG, bounds[size][1]))
            for n, size in zip(spec.item_shape, _sizes_of(spec, aligned=True), strict=True)
        )
        for spec in specs
    }
