"""Verifies that an exported form gives the eager model's answers, at every batch size."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from export.errors import ExportError, ParityError, reason
from export.options.artifacts import BATCH_S
from export.proving import indices
from export.proving.padded import PaddedBatch, largest_change, padded_batches
from export.variants.base import TOLERANCES, scaled
from models.bounds import at_sizes, mismatch, out_of_range, shared_axes
from models.choices import MAX_BATCH
from models.definitions.definition import Definition, HeldOut, Progress
from models.forms import input_tensors, named_outputs
from models.manifest import Difference, Parity
from models.padding import check_padding
from models.tensors import Array, Arrays, TensorSpec, Tolerance, stack
from models.timing import MIN_ROUNDS, time_interleaved

SEED = 1
# Every size up to the largest batch is compared, unless that takes eager longer than this, or more
# memory: then powers of two and their neighbours, where kernels change; and if these take longer,
# the fewest that are still evidence: one, two, two by chance, and the largest.
BUDGET_S, THOROUGH_S = 4.0, 30.0
BUDGET_BYTES = 1 << 30
MOST_BY_CHANCE = 16
MOST_PACED = 8  # items in a batch whose time is compared with eager's
QUICK_S = 0.01
# The share of a lossy tolerance by which a form's answers to an item alone, in a batch and padded
# may differ. Kernels add in another order: one unit in the last place of bf16 is up to 0.8 %, which
# is within a fifth of its tolerance.
STEADY = 0.2
ALONE = "compared with the item's answer alone: "
TIES = (
    "; if these are indices of the largest of scores that tie, allow a larger share with "
    "--integer-share"
)
FIX = (
    "call model.eval(), and keep operations off axis 0; a model that mixes the items of a batch on "
    "purpose, or has one scale for all of them, such as dynamic int8, works with --max-batch-size 1"
)
TINY = 1e-6  # relative differences use at least this magnitude

Runnable = Callable[..., object]
CPU = torch.device("cpu")


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


def run(
    module: Runnable, definition: Definition, inputs: Arrays, device: torch.device = CPU
) -> dict[str, Array]:
    """Run a forward: input name -> array with batch axis, to output name -> array with batch axis.

    Raises:
        ParityError: if the module fails, or its outputs differ from the definition.
    """
    copies = {name: np.array(array) for name, array in inputs.items()}
    tensors = [each.to(device) for each in input_tensors(copies, definition.inputs)]
    shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in inputs.items())
    try:
        with torch.inference_mode():
            result = module(*tensors)
    except Exception as error:  # a model's own code may raise anything
        raise ParityError(f"the model fails on {shapes}: {reason(error)}") from error
    if not isinstance(result, torch.Tensor | tuple | list):
        raise ParityError(
            f"the model returns a {type(result).__name__}; it must return a tensor, or a tuple of "
            "tensors in the order of the declared outputs"
        )
    try:
        outputs = named_outputs(result, definition.outputs)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ParityError(reason(error)) from error
    size = len(next(iter(inputs.values())))
    for spec in definition.outputs:
        array = outputs[spec.name]
        if array.shape[:1] != (size,) or not spec.accepts(array.shape[1:]):
            raise ParityError(
                f"output {spec.name!r} is {array.dtype}{list(array.shape)} for a batch of {size}, "
                f"declared as {spec.dtype}{list(spec.shape)}"
            )
    return outputs


def reference(
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
            if not _is_finite(expected[spec.name]):
                raise ParityError(
                    f"{what}: the eager model's output {spec.name!r} is not finite; "
                    "nothing can be proved against it"
                )
        if size > 1:
            alone = run(eager, definition, _last(inputs))
            _batch_effect(f"{what}: eager's", definition, tolerance, alone, expected)
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
    sizes = _sizes(max_batch, one_s, _bytes(comparisons[-1]), thorough=thorough)
    for done, size in enumerate(sizes[1:], start=2):
        compare(f"random inputs, batch {size}", definition.random_inputs(rng, size), size)
        progress(done, len(sizes), f"batch {size}")

    def draw() -> Arrays:
        inputs = definition.random_inputs(rng, 1)
        _check_inputs("random inputs, batch 1", definition, inputs, 1)
        return _first(inputs)

    forward = partial(run, eager, definition)
    if sizes[-1] > 1:
        others = definition.random_inputs(np.random.default_rng(SEED), indices.ITEMS)
        indices.check_indices(definition, others, forward, tolerance)
    padded = padded_batches(definition, draw, forward, max_batch, progress, tolerance)
    return ParityReference(definition, tuple(comparisons), sizes, padded, scale)


def check_parity(
    exported: Runnable,
    against: ParityReference,
    tolerance: Tolerance,
    progress: Progress,
    device: torch.device = CPU,
    *,
    so_far: float = 0.0,
) -> Parity:
    """Compare one form with the reference.

    Args:
        exported: the form.
        against: the reference.
        tolerance: how far an answer may be from eager's.
        progress: called with the largest difference so far.
        device: where the form runs.
        so_far: the largest difference of the variant's other forms and devices.

    Returns:
        the largest observed differences.

    Raises:
        ParityError: at the first answer that is not finite, or that differs from eager's by more
            than the tolerance, or from the same item's answer alone by more than float32's
            tolerance or a fifth of a lossy one.
    """
    definition = against.definition
    steady = tolerance
    if not tolerance.exact_integers:
        less = {name: STEADY * getattr(tolerance, name) for name in ("absolute", "of_range")}
        steady = tolerance.model_copy(update=less)
    worst = {spec.name: (0.0, 0.0) for spec in definition.outputs}
    invariance = 0.0
    for done, each in enumerate(against.comparisons, start=1):
        outputs = run(exported, definition, each.inputs, device)
        for spec in definition.outputs:
            expected, answer = each.expected[spec.name], outputs[spec.name]
            _check(each.what, spec, tolerance, expected, answer)
            difference = _difference(expected, answer)
            scale = np.maximum(np.abs(expected.astype(np.float64)), TINY)
            pair = (_largest(difference), _largest(difference / scale))
            worst[spec.name] = (
                max(worst[spec.name][0], pair[0]),
                max(worst[spec.name][1], pair[1]),
            )
        alone = run(exported, definition, _last(each.inputs), device)
        effect = _batch_effect(f"{each.what}:", definition, steady, alone, outputs)
        invariance = max(invariance, effect)
        largest = max(so_far, *(absolute for absolute, _ in worst.values()))
        progress(done, len(against.comparisons), f"largest difference {largest:.1e}")
    forward = partial(run, exported, definition, device=device)
    for batch in against.padded:
        largest_change("", batch, forward, tolerance)
        own = tuple(_first(forward(stack([item]))) for item in batch.items)
        effect = largest_change(ALONE, replace(batch, expected=own), forward, steady)
        invariance = max(invariance, effect)
    return Parity(
        outputs={
            name: Difference(max_absolute=absolute, max_relative=relative)
            for name, (absolute, relative) in worst.items()
        },
        batch_sizes=against.batch_sizes,
        batch_invariance=invariance,
        padded_to=tuple(batch.to for batch in against.padded),
    )


def pace(exported: Runnable, eager: Runnable, against: ParityReference) -> float:
    """Return how many times as long as eager a form takes for the largest of the small batches.

    0 if it takes less than QUICK_S: any proof can afford that.

    Raises:
        ParityError: if one of them fails.
    """
    few = (each for each in against.comparisons if _size(each) <= MOST_PACED)
    inputs = max(few, key=_bytes).inputs
    runs = {
        which: partial(run, module, against.definition, inputs)
        for which, module in (("eager", eager), ("form", exported))
    }
    times = time_interleaved(runs, MIN_ROUNDS)
    eager_s, form_s = min(times["eager"]), min(times["form"])
    return form_s / eager_s if form_s >= QUICK_S else 0.0


def agree(one: Runnable, other: Runnable, against: ParityReference, tolerance: Tolerance) -> bool:
    """Whether two forms give the same answers on the CPU, within the tolerance.

    Raises:
        ParityError: if one of them fails.
    """
    definition = against.definition
    for each in against.comparisons:
        mine, its = (run(form, definition, each.inputs) for form in (one, other))
        for name in mine:
            for want, answer in zip(mine[name], its[name], strict=True):
                if tolerance.excess(want, answer) is not None:
                    return False
    return True


def accuracy(
    module: Runnable, definition: Definition, held_out: HeldOut, device: torch.device = CPU
) -> float:
    """Return the share of the held-out set whose highest first output is the label, or its score.

    Raises:
        ExportError: if the set is empty.
        ParityError: if the module fails, or an answer is not finite.
    """
    if not len(held_out.labels):
        raise ExportError("the held-out set is empty; set held_out to None if there is none")
    batches: list[dict[str, Array]] = []
    for start in range(0, len(held_out.labels), 64):
        part = slice(start, start + 64)
        inputs = {name: array[part] for name, array in held_out.inputs.items()}
        batches.append(run(module, definition, inputs, device))
    outputs = {
        spec.name: np.concatenate([m[spec.name] for m in batches]) for spec in definition.outputs
    }
    first = definition.outputs[0].name
    if not _is_finite(outputs[first]):
        raise ParityError(f"held-out set: output {first!r} is not finite")
    if held_out.score is not None:
        return held_out.score(outputs, held_out.labels)
    right = int(np.sum(outputs[first].argmax(axis=-1) == held_out.labels))
    return right / len(held_out.labels)


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


def _size(batch: Comparison) -> int:
    return len(next(iter(batch.inputs.values())))


def _bytes(batch: Comparison) -> int:
    return sum(array.nbytes for array in (*batch.inputs.values(), *batch.expected.values()))


def _near_powers_of_two(largest: int) -> Iterator[int]:
    power = 1
    while power <= largest:
        yield from (size for size in (power - 1, power, power + 1) if 1 <= size <= largest)
        power *= 2
    yield largest


def _check(
    what: str, spec: TensorSpec, tolerance: Tolerance, expected: Array, answers: Array
) -> None:
    if not _is_finite(answers):
        raise ParityError(f"{what}: output {spec.name!r} is not finite, eager's is")
    for want, answer in zip(expected, answers, strict=True):
        excess = tolerance.excess(want, answer)
        if excess is not None:
            ties = "" if answers.dtype.kind == "f" else TIES
            raise ParityError(f"{what}: output {spec.name!r} {excess}{ties}")


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


def _is_finite(array: Array) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _first(batch: Arrays) -> dict[str, Array]:
    """Return the first item, without the batch axis."""
    return {name: array[0] for name, array in batch.items()}


def _last(batch: Arrays) -> dict[str, Array]:
    """Return the last item, as a batch of one."""
    return {name: array[-1:] for name, array in batch.items()}


def _batch_effect(
    what: str, definition: Definition, tolerance: Tolerance, alone: Arrays, together: Arrays
) -> float:
    """Return the largest difference between the last item's answers alone and in its batch."""
    largest = 0.0
    for spec in definition.outputs:
        one, inside = alone[spec.name][-1], together[spec.name][-1]
        excess = tolerance.excess(one, inside)
        if excess is not None:
            raise ParityError(
                f"{what} output {spec.name!r} of the last item in its batch, compared with that of "
                f"the item alone: {excess}; an answer must not depend on what else is in its "
                f"batch: {_advice(one)}"
            )
        largest = max(largest, _largest(_difference(one, inside)))
    return largest


def _advice(answer: Array) -> str:
    if answer.dtype.kind == "f":
        return FIX
    return (
        "if these are indices of the largest of scores that tie, return the scores too, or allow a "
        f"larger share with --integer-share; else {FIX}"
    )


def _difference(expected: Array, answer: Array) -> Array:
    return np.abs(expected.astype(np.float64) - answer.astype(np.float64))


def _largest(difference: Array) -> float:
    return float(difference.max(initial=0))
