"""Checks that no number of an item makes it an index into another item of its batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from export.errors import ParityError
from models.bounds import at_sizes
from models.definitions.definition import Definition
from models.tensors import Array, Arrays, TensorSpec, Tolerance, stack, unstack

ITEMS = 3  # of the batch; the item in the middle is changed
MOST_PLACES = 4  # of an item that are changed alone, at the most
BUDGET_S = 5.0  # of eager

RunBatch = Callable[[Arrays], Arrays]  # a batch's inputs -> its outputs


def check_indices(
    definition: Definition, batch: Arrays, eager: RunBatch, tolerance: Tolerance
) -> None:
    """Try integers that the inputs allow and the samples lack, near the sizes of the items.

    A model that concatenates the items of a batch adds an offset to their indices: a number that is
    out of the range of its own item is then one of the next item.

    Args:
        definition: has the inputs and their ranges.
        batch: of at least three items; input name -> array with the batch axis.
        eager: the model.
        tolerance: how far an item's answers alone and in a batch may differ.

    Raises:
        ParityError: if an answer depends on the batch.
    """
    items = unstack(batch)[:ITEMS]
    plain: Arrays | None = None
    ends_at = time.perf_counter() + BUDGET_S
    for spec, number, item in _changes(definition.inputs, items[1]):
        if time.perf_counter() > ends_at:
            return
        plain = plain or _answers(eager, stack(items))
        if plain is None:  # it runs on smaller batches only
            return
        alone = _answers(eager, stack([item]))
        among = _answers(eager, stack([items[0], item, items[2]]))
        if among is None:
            continue
        if alone is None or not _same(alone, 0, among, 1, tolerance):
            what = "fails alone but is answered" if alone is None else "is answered differently"
        elif any(not _same(plain, row, among, row, tolerance) for row in (0, 2)):
            what = "changes the answers of other items"
        else:
            continue
        raise ParityError(
            f"an item with the number {number} in {spec.name!r} {what} in a batch, as if it were "
            "an index into another item: an answer must not depend on what else is in its batch. "
            f"Declare the range of {spec.name!r}, such as {_advice(definition.inputs, spec, items)}"
        )


def _changes(
    inputs: Sequence[TensorSpec], item: Arrays
) -> Iterator[tuple[TensorSpec, int, Arrays]]:
    """Return an input, a number, and the item with this number everywhere or in one place."""
    shapes = {name: array.shape for name, array in item.items()}
    sizes = sorted({size for shape in shapes.values() for size in shape})
    masks = {dimension.mask for spec in inputs for dimension in spec.dimensions}
    for spec in at_sizes(inputs, shapes):
        array = item[spec.name]
        if array.dtype.kind not in "iu" or spec.name in masks or array.size == 0:
            continue
        near = [number for size in sizes for number in (size, size + 1, 2 * size)]
        for number in (*sorted(set(near)), -1):
            if _is_new(spec, array, number):
                for variation in _with(array, number):
                    yield spec, number, {**item, spec.name: variation}


def _is_new(spec: TensorSpec, array: Array, number: int) -> bool:
    """Whether an input allows a number, and the sample has none as large or as small."""
    whole = np.iinfo(array.dtype)
    least = int(whole.min) if spec.minimum is None else spec.minimum
    most = int(whole.max) if spec.maximum is None else spec.maximum
    return least <= number <= most and not int(array.min()) <= number <= int(array.max())


def _with(array: Array, number: int) -> Iterator[Array]:
    yield np.full_like(array, number)
    for place in np.linspace(0, array.size - 1, min(array.size, MOST_PLACES)).round().astype(int):
        variation = array.copy()
        variation.reshape(-1)[place] = number
        yield variation


def _answers(eager: RunBatch, batch: Arrays) -> Arrays | None:
    try:
        return eager(batch)
    except ParityError:  # the model refuses the number
        return None


def _same(one: Arrays, row: int, other: Arrays, its_row: int, tolerance: Tolerance) -> bool:
    """Whether two answers are equal, apart from rounding."""
    return all(
        tolerance.excess(array[row], other[name][its_row]) is None for name, array in one.items()
    )


def _advice(inputs: Sequence[TensorSpec], spec: TensorSpec, items: Sequence[Arrays]) -> str:
    """Return the option with the range of an index into the first free size of another input."""
    size_name = next(
        (
            axis.name
            for each in inputs
            for size, axis in zip(each.item_shape, each.axes, strict=True)
            if size == -1 and each.name != spec.name
        ),
        None,
    )
    example = spec.model_copy(update={"minimum": 0, "maximum": None, "below": size_name or "n"})
    note = "" if size_name else ", where n is the name of the size that the numbers count"
    return f"--input '{example}'{note}"
