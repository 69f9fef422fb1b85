"""Checks that padding changes no answer, with items of different sizes batched and alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from export.errors import ParityError
from export.proving.indices import RunBatch
from models.bounds import at_sizes
from models.definitions.definition import Definition, Progress
from models.padding import Padding, padding_of
from models.tensors import Arrays, Dimension, TensorSpec, Tolerance, stack, tile

SEED = 2
MOST_ITEMS = 8  # of a batch
MOST_PLACES = 4096  # of a batch with more than two items: their number times the largest size
BUDGET_S = 10.0  # of eager; sizes that would exceed it are left out, except the largest


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """Items of different sizes, and eager's answer to each alone.

    Attributes:
        items: input name -> array without the batch axis.
        expected: of each item: output name -> array without the batch axis.
        to: the padded size of all.
    """

    padding: Padding
    items: tuple[Arrays, ...]
    expected: tuple[Arrays, ...]
    to: int


def padded_batches(
    definition: Definition,
    draw: Callable[[], Arrays],
    eager: RunBatch,
    max_batch: int,
    progress: Progress,
    tolerance: Tolerance,
) -> tuple[PaddedBatch, ...]:
    """Build batches padded to increasing sizes; none if no dimension is padded.

    The largest size is always included, with two items if there is no time for more.

    Args:
        definition: says which dimension is padded.
        draw: returns an item of any size, which is repeated or cut to the wanted size.
        eager: the model.
        max_batch: most items of a batch, but at least two.
        progress: called for each batch.
        tolerance: how far eager's answers to an item alone and padded may differ.

    Raises:
        ParityError: if padding changes one of eager's answers.
    """
    padding = padding_of(definition.inputs, definition.outputs)
    if padding is None:
        return ()
    dimension = padding.dimension
    advice = (
        f": the model does not respect {dimension.mask!r}; remove the mask from the declaration, "
        "then only items of equal size share a batch"
    )
    least, most = dimension.least, dimension.most
    rng = np.random.default_rng(SEED)

    def build_batch(sizes: Sequence[int], top: int) -> PaddedBatch:
        first = draw()  # the others get its sizes in other free axes: else they share no batch
        originals = (first, *(draw() for _ in sizes[1:]))
        items = tuple(
            _resize(dimension, definition.inputs, item, first, size)
            for item, size in zip(originals, sizes, strict=True)
        )
        alone = [eager(stack([item])) for item in items]
        expected = tuple({name: array[0] for name, array in each.items()} for each in alone)
        batch = PaddedBatch(padding, items, expected, top)
        largest_change("eager's ", batch, eager, tolerance, advice)
        return batch

    tops = list(_tops(least, most))
    if not tops:
        return ()
    progress(0, len(tops), f"{dimension.name} {least} and {most}")
    batches = {most: build_batch((least, most), most)}  # regardless of time; also the warm-up
    ends_at = time.perf_counter() + BUDGET_S
    took_s = before = 0.0
    for done, top in enumerate(tops, start=1):
        began = time.perf_counter()
        # The time of attention grows with the square of the size.
        if before and began + took_s * (top / before) ** 2 > ends_at:
            break
        batches[top] = build_batch(rng.permutation(_spread(least, top, max_batch)).tolist(), top)
        took_s, before = time.perf_counter() - began, top
        progress(done, len(tops), f"{dimension.name} {least} to {top}")
    return tuple(batches[top] for top in sorted(batches))


def largest_change(
    what: str, batch: PaddedBatch, run: RunBatch, tolerance: Tolerance, advice: str = ""
) -> float:
    """Return the largest difference between an item's answer in a padded batch and the expected.

    Args:
        what: the beginning of a message.
        batch: from `padded_batches`.
        run: the model, or a form of it.
        tolerance: how far an answer may be from the expected one.
        advice: the end of a message on a number that changes.

    Raises:
        ParityError: at the first answer that differs by more.
    """
    padding = batch.padding
    outputs = run(padding.stack(batch.items))
    largest = 0.0
    for row, (item, expected) in enumerate(zip(batch.items, batch.expected, strict=True)):
        size = padding.size(item)
        answer = padding.trim({name: array[row] for name, array in outputs.items()}, size)
        for name, want in expected.items():
            subject = f"{what}output {name!r} of an item of {padding.dimension.name} {size}"
            subject += f", padded to {batch.to}:"
            excess = tolerance.excess(want, answer[name])
            if want.shape != answer[name].shape:
                raise ParityError(
                    f"{subject} {excess}; if that axis has the item's size, declare it as "
                    f"{padding.dimension.name!r}, and what belongs to padding is cut off"
                )
            if excess is not None:
                raise ParityError(f"{subject} {excess}{advice}")
            difference = np.abs(want.astype(np.float64) - answer[name].astype(np.float64))
            largest = max(largest, float(difference.max(initial=0)))
    return largest


def _tops(least: int, most: int) -> Iterator[int]:
    """Return the sizes to pad to: each twice the one before, and the largest."""
    top = 2 * least
    while top < most:
        yield top
        top *= 2
    if most > least:
        yield most


def _spread(least: int, top: int, max_batch: int) -> list[int]:
    """Return different sizes for one batch, from smallest to largest, in equal ratios."""
    count = max(2, min(MOST_ITEMS, max_batch, MOST_PLACES // top))
    return sorted({round(size) for size in np.geomspace(least, top, count).tolist()})


def _resize(
    dimension: Dimension, inputs: Sequence[TensorSpec], item: Arrays, like: Arrays, size: int
) -> Arrays:
    """Repeat or cut an item: to this size along the padded axes, else to the sizes of another."""
    arrays = dict(item)
    for spec in inputs:
        shape = [
            size if axis.name == dimension.name else same
            for axis, same in zip(spec.axes, like[spec.name].shape, strict=True)
        ]
        arrays[spec.name] = tile(item[spec.name], shape)
    shapes = {name: array.shape for name, array in arrays.items()}
    for spec, here in zip(inputs, at_sizes(inputs, shapes), strict=True):
        if spec.below is not None and here.maximum is not None:
            arrays[spec.name] = np.minimum(arrays[spec.name], here.maximum).astype(spec.dtype)
    return arrays
