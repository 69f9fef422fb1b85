"""The reference of a proof: the eager model's answers at many batch sizes, and what it costs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from export.errors import ExportError, ParityError
from export.options.artifacts import BATCH_S
from export.proving import indices
from export.proving.forwards import Runnable, batch_effect, first_item, is_finite, last_item, run
from export.proving.padded import PaddedBatch, padded_batches
from export.variants.base import TOLERANCES, scaled
from models.bounds import at_sizes, mismatch, out_of_range, shared_axes
from models.choices import MAX_BATCH
from models.definitions.definition import Definition, Progress
from models.padding import check_padding
from models.tensors import Arrays, Tolerance, stack

SEED = 1
# Every size up to the largest batch is compared, unless that takes eager longer than this, or more
# memory: then powers of two and their neighbours, where kernels change; and if these take longer,
# the fewest that are still evidence: one, two, two by chance, and the largest.
BUDGET_S, THOROUGH_S = 4.0, 30.0
BUDGET_BYTES = 1 << 30
MOST_BY_CHANCE = 16


@dataclass(frozen=True, slots=True)
class Comparison:
    """One batch, and eager float32's outputs for it.

    Attributes:
        what: its origin, for messages.
        inputs: input name -> array with the batch axis.
        expected: output name -> array with the batch axis.
    """

    what: str
    inputs: Arrays
    expected: Arrays

    @property
    def size(self) -> int:
        """Number of items."""
        return len(next(iter(self.inputs.values())))

    @property
    def bytes(self) -> int:
        """Of inputs and outputs."""
        return sum(array.nbytes for array in (*self.inputs.values(), *self.expected.values()))


@dataclass(frozen=True, slots=True)
class ParityReference:
    """The reference that all forms of a model are compared with.

    Attributes:
        padded: batches of items that differ in size; empty: no dimension is padded.
        scale: factor for the absolute part of a tolerance, at least 1; see `_scale`.
    """

    definition: Definition
    comparisons: tuple[Comparison, ...]
    batch_sizes: tuple[int, ...]
    padded: tuple[PaddedBatch, ...] = ()
    scale: float = 1.0


def reference_of(
    eager: Runnable,
    definition: Definition,
    max_batch: int | None,
    progress: Progress,
    *,
    thorough: bool = False,
    tolerance: Tolerance = TOLERANCES["float32"],
) -> ParityReference:
    """Compute eager's outputs for random inputs of many batch sizes and the golden examples.

    Args:
        eager: the model.
        definition: its contract and its data.
        max_batch: the largest batch; None: MAX_BATCH, or, without a GPU, the largest power of two,
            at least 2, that eager computes in BATCH_S.
        progress: called after each batch.
        thorough: compare powers of two and their neighbours at least, up to MAX_BATCH, however long
            that takes.
        tolerance: how far eager's answers to an item alone, in a batch and padded may differ.

    Raises:
        ExportError: if the definition's inputs differ from its declaration.
        ParityError: if eager itself fails, its outputs are not finite, or an item's answer depends
            on its batch or on padding.
    """
    try:
        check_padding(definition.inputs, definition.outputs)
    except ValueError as error:
        raise ExportError(f"the definition's padding: {error}") from error
    rng = np.random.default_rng(SEED)
    comparisons: list[Comparison] = []

    def compare(what: str, inputs: Arrays, size: int) -> None:
        _check_inputs(what, definition, inputs, size)
        expected = run(eager, definition, inputs)
        for spec in definition.outputs:
            if not is_finite(expected[spec.name]):
                raise ParityError(
                    f"{what}: the eager model's output {spec.name!r} is not finite, so nothing can "
                    f"be proved against it; {_advice(definition)}"
                )
        if size > 1:
            alone = run(eager, definition, last_item(inputs))
            batch_effect(f"{what}: eager's", definition, tolerance, alone, expected)
        if size == 2:  # one of both has the batch's largest number, which may hide a common scale
            alone = run(eager, definition, {name: array[:1] for name, array in inputs.items()})
            batch_effect(f"{what}: eager's", definition, tolerance, alone, expected, at="first")
        comparisons.append(Comparison(what, inputs, expected))

    singles = [
        (f"golden example {at}", stack([item]))
        for at, item in enumerate(definition.golden_inputs())
    ]
    singles.append(("random inputs, batch 1", definition.random_inputs(rng, 1)))
    took_s = []
    for what, inputs in singles:
        began = time.perf_counter()
        compare(what, inputs, 1)
        took_s.append(time.perf_counter() - began)
    scale = _scale(comparisons)
    tolerance = scaled(tolerance, scale)
    one_s = min(took_s[1:])  # without the first, the warm-up; other work only adds
    if max_batch is None:
        max_batch = MAX_BATCH if thorough or torch.cuda.is_available() else _affordable(one_s)
    sizes = _sizes(max_batch, one_s, comparisons[-1].bytes, thorough=thorough)
    for done, size in enumerate(sizes[1:], start=2):
        compare(f"random inputs, batch {size}", definition.random_inputs(rng, size), size)
        progress(done, len(sizes), f"batch {size}")

    def draw() -> Arrays:
        inputs = definition.random_inputs(rng, 1)
        _check_inputs("random inputs, batch 1", definition, inputs, 1)
        return first_item(inputs)

    forward = partial(run, eager, definition)
    if sizes[-1] > 1:
        others = definition.random_inputs(np.random.default_rng(SEED), indices.ITEMS)
        indices.check_indices(definition, others, forward, tolerance)
    padded = padded_batches(definition, draw, forward, max_batch, progress, tolerance)
    return ParityReference(definition, tuple(comparisons), sizes, padded, scale)


def _advice(definition: Definition) -> str:
    """What helps a model that returns NaN or infinity for random inputs."""
    masks = [spec.name for spec in definition.inputs if spec.dtype == "bool"]
    if masks:
        return (
            f"{masks[0]!r} may be all false: replace a sum of 0 before the model divides by it, or "
            "let the server make the mask, with --pad"
        )
    return "give inputs as the model takes them, with --examples"


def _affordable(one_s: float) -> int:
    """Return the largest batch of a model, by the cost of a batch of one."""
    largest = MAX_BATCH
    while largest > 2 and largest * one_s > BATCH_S:
        largest //= 2
    return largest


def _sizes(most: int, one_s: float, one_bytes: int, *, thorough: bool) -> tuple[int, ...]:
    """Return the batch sizes to compare, by the cost of a batch of one."""
    near, budget_s = set(_near_powers_of_two(most)), THOROUGH_S if thorough else BUDGET_S
    for sizes, always in ((set(range(1, most + 1)), False), (near, thorough)):
        items = sum(sizes)
        if always or (items * one_s <= budget_s and items * one_bytes <= BUDGET_BYTES):
            return tuple(sorted(sizes))
    others = range(3, min(most, MOST_BY_CHANCE + 1))
    chance_sizes = np.random.default_rng(SEED).permutation(others)[:2]
    return tuple(sorted(size for size in {1, 2, *map(int, chance_sizes), most} if size <= most))


def _scale(comparisons: Sequence[Comparison]) -> float:
    """Return the usual size of the outputs, if an item's output may be a single number; at least 1.

    Such a number has no range of its own: near 0 it may be the difference of large ones, and as
    inexact as they are. One tolerance holds for all outputs: the smallest of them decides.

    Args:
        comparisons: batches of one item.
    """
    sizes, has_single = [], False
    for name, first in comparisons[0].expected.items():
        if first.dtype.kind == "f" and first.size:
            largest = [float(np.max(np.abs(each.expected[name]))) for each in comparisons]
            sizes.append(float(np.median(largest)))
            has_single = has_single or first.size == 1
    return max(1.0, min(sizes)) if has_single else 1.0


def _near_powers_of_two(largest: int) -> Iterator[int]:
    power = 1
    while power <= largest:
        yield from (size for size in (power - 1, power, power + 1) if 1 <= size <= largest)
        power *= 2
    yield largest


def _check_inputs(what: str, definition: Definition, inputs: Arrays, size: int) -> None:
    names = [spec.name for spec in definition.inputs]
    if set(inputs) != set(names):
        raise ExportError(f"{what}: the definition gives {sorted(inputs)}, but declares {names}")
    for spec in definition.inputs:
        array = inputs[spec.name]
        fits = array.shape[:1] == (size,) and spec.takes(array.shape[1:])
        if array.dtype.name != spec.dtype or not fits:
            raise ExportError(
                f"{what}: the definition gives {spec.name!r} as {array.dtype}{list(array.shape)} "
                f"for a batch of {size}, but declares {spec}"
            )
    shapes = {name: array.shape[1:] for name, array in inputs.items()}
    for spec, here in zip(definition.inputs, at_sizes(definition.inputs, shapes), strict=True):
        if (number := out_of_range(here, inputs[spec.name])) is not None:
            raise ExportError(f"{what}: the definition gives {number} for {spec}")
    differ = mismatch(shared_axes(definition.inputs), shapes)
    if differ is not None:
        raise ExportError(f"{what}: the definition gives {differ.second.input!r}: {differ}")
