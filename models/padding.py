"""Pads items of different sizes to share a batch, with a mask that marks data and padding.

Export's verification and serving share this code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from models.tensors import Array, Arrays, Dimension, TensorSpec

# Size classes per doubling for grouping items: padding to the next one is at most a ninth.
STEPS = 8


class _PaddedInput(NamedTuple):
    """An input with a padded axis: its name, that axis of an item, and the fill value."""

    name: str
    axis: int
    fill: int


class Padding:
    """How items of one model are padded along the one dimension that has a mask.

    Attributes:
        trims: whether an output has the padded dimension.
    """

    def __init__(
        self, dimension: Dimension, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
    ) -> None:
        self.dimension = dimension
        self._inputs = {
            spec.name: _PaddedInput(spec.name, at, spec.fill)
            for spec in inputs
            for at, axis in enumerate(spec.axes)
            if axis.name == dimension.name
        }
        self._outputs = [
            (spec.name, at)
            for spec in outputs
            for at, axis in enumerate(spec.axes)
            if axis.name == dimension.name
        ]
        self.trims = bool(self._outputs)
        first = next(iter(self._inputs.values()))
        self._first, self._axis = first.name, first.axis

    def size(self, item: Arrays) -> int:
        """Return an item's size (input name -> array without the batch axis) in the dimension."""
        return int(item[self._first].shape[self._axis])

    def stack(self, items: Sequence[Arrays], into: Arrays | None = None) -> dict[str, Array]:
        """Batch items, padded to the largest: input name -> array with the batch axis.

        Args:
            items: at least one; input name -> array without the batch axis.
            into: target arrays of the batch's shapes; None: new ones.
        """
        shapes = self.batch_shapes(items)
        batch = {}
        for name, first in items[0].items():
            out = into[name] if into is not None else np.empty(shapes[name], first.dtype)
            padded_input = self._inputs.get(name)
            if padded_input is None:
                np.stack([item[name] for item in items], out=out)
            else:
                out[...] = padded_input.fill
                before = (slice(None),) * padded_input.axis
                for row, item in zip(out, items, strict=True):
                    array = item[name]
                    row[(*before, slice(array.shape[padded_input.axis]))] = array
            batch[name] = out
        return batch

    def batch_shapes(self, items: Sequence[Arrays]) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of the batch that `stack` builds from the items."""
        largest = max(map(self.size, items))
        shapes = {}
        for name, first in items[0].items():
            shape = list(first.shape)
            if name in self._inputs:
                shape[self._inputs[name].axis] = largest
            shapes[name] = (len(items), *shape)
        return shapes

    def trim(self, outputs: Arrays, size: int) -> Arrays:
        """Remove the padding from the outputs, without the batch axis, of an item of this size."""
        trimmed_outputs = dict(outputs)
        for name, axis in self._outputs:
            trimmed_outputs[name] = trimmed_outputs[name][(*(slice(None),) * axis, slice(size))]
        return trimmed_outputs


def padding_of(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Padding | None:
    """Return the padding of a model; None: no dimension has a mask."""
    dimensions = [each for spec in inputs for each in spec.dimensions if each.mask is not None]
    return Padding(dimensions[0], inputs, outputs) if dimensions else None


def check_padding(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
    """Check a manifest's declaration of padding.

    Raises:
        ValueError: with the contradiction.
    """
    dimensions = {each.name: each for spec in inputs for each in spec.dimensions if each.mask}
    if len(dimensions) > 1:
        raise ValueError(
            f"only one dimension can be padded, got {', '.join(map(repr, dimensions))}"
        )
    for name, dimension in dimensions.items():
        if dimension.least < 1:
            raise ValueError(f"the padded {name!r} must have a least size of 1, not 0")
        mask = next((spec for spec in inputs if spec.name == dimension.mask), None)
        if mask is None:
            raise ValueError(f"the mask of {name!r} is {dimension.mask!r}, which is not an input")
        if [axis.name for axis in mask.axes] != [name]:
            raise ValueError(f"the mask {mask.name!r} must have the shape [-1,{name}]")
        if mask.fill != 0:
            raise ValueError(f"the mask {mask.name!r} must be padded with 0, not {mask.fill}")
        for spec in inputs:
            if sum(axis.name == name for axis in spec.axes) > 1:
                raise ValueError(f"{spec.name!r} has {name!r} twice; only one axis can be padded")
    for spec in outputs:
        for each in spec.dimensions:
            if each.name is not None and each.name not in dimensions:
                raise ValueError(
                    f"output {spec.name!r}: its axis {each.name!r} is not a padded dimension"
                )


def size_class(size: int) -> int:
    """Return the largest size that is grouped with this size.

    Up to STEPS each size is its own class; above, there are STEPS classes per doubling.
    """
    if size <= STEPS:
        return size
    step = 1 << ((size - 1).bit_length() - STEPS.bit_length())
    return -(-size // step) * step
