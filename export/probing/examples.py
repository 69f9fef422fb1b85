"""Draws batches from real inputs: as they are at their own sizes, repeated or cut at others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from pydantic import JsonValue

from models.bounds import at_sizes, safe_range
from models.tensors import Array, Arrays, TensorSpec, stack, tile

MOST = 3  # of the golden ones, and of their sizes

# The shapes of one item: one for each input, in order.
Shapes: TypeAlias = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Examples:
    """Real inputs of a model.

    Attributes:
        items: at least two, which differ: input name -> array without the batch axis, in the order
            of the model's inputs.
        display: one of them as a client sends it in JSON; None: as numbers.
    """

    items: tuple[Arrays, ...]
    display: JsonValue = None

    def golden(self) -> list[Arrays]:
        """Return the smallest item, one in the middle, and the largest."""
        by_size = sorted(self.items, key=bytes_of)
        picks = (by_size[0], by_size[len(by_size) // 2], by_size[-1])
        return list({id(each): each for each in picks}.values())

    def shapes(self) -> tuple[Shapes, ...]:
        """Return the shapes of the golden items, without repetitions."""
        return tuple(dict.fromkeys(map(shapes_of, self.golden())))

    def draw(
        self, inputs: Sequence[TensorSpec], rng: np.random.Generator, batch: int, shapes: Shapes
    ) -> Arrays:
        """Draw a batch of different items: input name -> array with the batch axis.

        Items of these shapes are used as they are. If there is only one, it lends its integers to
        others, which may depend on the sizes, such as the edges of a graph.
        """
        order = [self.items[at] for at in rng.permutation(len(self.items))]
        items = [item for item in order if shapes_of(item) == shapes]
        if len(items) < 2:
            first = items[0] if items else order[0]
            others = [item for item in order if item is not first][: max(1, batch - 1)]
            lender = items[0] if items else None
            items = items or [_resize(inputs, first, shapes)]
            items += [_resize(inputs, other, shapes, lender) for other in others]
        return stack([items[row % len(items)] for row in range(batch)])


def shapes_of(item: Arrays) -> Shapes:
    """Return the shapes of an item, in the order of its inputs."""
    return tuple(array.shape for array in item.values())


def bytes_of(item: Arrays) -> int:
    """Return the bytes of an item's arrays."""
    return sum(array.nbytes for array in item.values())


def _resize(
    inputs: Sequence[TensorSpec], item: Arrays, shapes: Shapes, lender: Arrays | None = None
) -> Arrays:
    """Repeat or cut an item to these shapes; integers are limited to numbers that work for them."""
    shape_of = {spec.name: shape for spec, shape in zip(inputs, shapes, strict=True)}
    lends = lender is not None and any(_is_measured(array) for array in item.values())
    arrays: dict[str, Array] = {}
    for spec in at_sizes(inputs, shape_of):
        array = tile(item[spec.name], shape_of[spec.name])
        if lender is not None and lends and not _is_measured(array):
            array = lender[spec.name]
        elif array.dtype.kind == "i":
            low, high = safe_range(spec)
            array = np.clip(array, low, max(low, high)).astype(spec.dtype)
        arrays[spec.name] = array
    return arrays


def _is_measured(array: Array) -> bool:
    """Whether numbers are measured rather than counted: floats, pixels, bytes."""
    return array.dtype.kind == "f" or array.dtype == np.uint8
