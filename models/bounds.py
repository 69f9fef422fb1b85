"""Limits of an item beyond dtypes and shapes: ranges of integers, shared sizes.

Axes with the same name have the same size in an item, across all its inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from models.tensors import Array, Dimension, TensorSpec


class InputAxis(NamedTuple):
    """An axis of an item: the input and the axis number."""

    input: str
    axis: int


class Mismatch(NamedTuple):
    """Two axes with the same name but different sizes."""

    name: str
    first: InputAxis
    size: int
    second: InputAxis
    other_size: int

    def __str__(self) -> str:
        return (
            f"axis {self.second.axis} has size {self.other_size}, but axis {self.first.axis} of "
            f"{self.first.input!r} has size {self.size}: both are {self.name!r} and must be equal"
        )


def check_same_bounds(specs: Sequence[TensorSpec]) -> None:
    """Check that axes with the same name have the same bounds, in all inputs.

    Raises:
        ValueError: at the first two that differ.
    """
    dimensions: dict[str, Dimension] = {}
    for spec in specs:
        for each in spec.dimensions:
            if each.name is not None and dimensions.setdefault(each.name, each) != each:
                other = dimensions[each.name]
                raise ValueError(
                    f"{each.name!r} has sizes of {other.least} to {other.most} in one place and "
                    f"of {each.least} to {each.most} in another; one name has one size"
                )


def shared_axes(specs: Sequence[TensorSpec]) -> dict[str, list[InputAxis]]:
    """Return the names that several axes share, with these axes."""
    places: dict[str, list[InputAxis]] = {}
    for spec in specs:
        for at, axis in enumerate(spec.axes):
            if axis.name is not None:
                places.setdefault(axis.name, []).append(InputAxis(spec.name, at))
    return {name: axes for name, axes in places.items() if len(axes) > 1}


def mismatch(
    axes_by_name: Mapping[str, Sequence[InputAxis]], shapes: Mapping[str, Sequence[int]]
) -> Mismatch | None:
    """Return the first two axes with one name and different sizes; None: all are equal.

    Args:
        axes_by_name: from `shared_axes`.
        shapes: input name -> shape of an item, with the right number of axes.
    """
    for name, (first, *others) in axes_by_name.items():
        size = shapes[first.input][first.axis]
        for place in others:
            other_size = shapes[place.input][place.axis]
            if other_size != size:
                return Mismatch(name, first, size, place, other_size)
    return None


def out_of_range(spec: TensorSpec, array: Array) -> int | None:
    """Return the smallest or the largest number of an array if it is out of the input's range."""
    if array.size == 0:
        return None
    if spec.minimum is not None and (smallest := int(array.min())) < spec.minimum:
        return smallest
    if spec.maximum is not None and (largest := int(array.max())) > spec.maximum:
        return largest
    return None


def check_below(specs: Sequence[TensorSpec]) -> None:
    """Check that each range which ends at a size names a free axis.

    Raises:
        ValueError: at the first name that is unknown.
    """
    names = {axis.name for spec in specs for axis in spec.axes if axis.name is not None}
    for spec in specs:
        if spec.below is not None and spec.below not in names:
            there = ", ".join(map(repr, sorted(names))) or "none"
            raise ValueError(
                f"the numbers of {spec.name!r} are less than the size {spec.below!r}, but no free "
                f"size has this name; there are: {there}"
            )


def below(specs: Sequence[TensorSpec]) -> dict[str, InputAxis]:
    """Return the inputs whose numbers are less than a size, with the first axis of that size."""
    places: dict[str, InputAxis] = {}
    for spec in specs:
        for at, axis in enumerate(spec.axes):
            if axis.name is not None:
                places.setdefault(axis.name, InputAxis(spec.name, at))
    return {spec.name: places[spec.below] for spec in specs if spec.below is not None}


def at_sizes(
    specs: Sequence[TensorSpec], shapes: Mapping[str, Sequence[int]]
) -> tuple[TensorSpec, ...]:
    """Return the inputs of items of these shapes: a range up to a size ends at a number."""
    places = below(specs)
    return tuple(
        _ending_at(spec, shapes[places[spec.name].input][places[spec.name].axis] - 1)
        if spec.name in places
        else spec
        for spec in specs
    )


def _ending_at(spec: TensorSpec, number: int) -> TensorSpec:
    last = number if spec.maximum is None else min(spec.maximum, number)
    return spec.model_copy(update={"below": None, "maximum": last})


def safe_range(spec: TensorSpec) -> tuple[int, int]:
    """Return the smallest and largest number to draw for an input of integers or bools.

    That is its range, or if one end is open, the two numbers nearest to 0: integers may be indices
    into a table, so it is unknown which others the model accepts.
    """
    if spec.minimum is not None and spec.maximum is not None:
        return spec.minimum, spec.maximum
    return near_zero(spec)


def near_zero(spec: TensorSpec) -> tuple[int, int]:
    """Return the two numbers nearest to 0 in a range of integers or bools: 0 and 1 if allowed."""
    if spec.dtype == "bool":
        return 0, 1
    whole = np.iinfo(spec.dtype)
    least = int(whole.min) if spec.minimum is None else spec.minimum
    most = int(whole.max) if spec.maximum is None else spec.maximum
    low = min(max(0, least), max(least, most - 1))
    return low, min(low + 1, most)
