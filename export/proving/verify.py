"""Verifies that an exported form gives the eager model's answers, at every batch size."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from operator import attrgetter

import numpy as np
import torch

from export.errors import ExportError, ParityError
from export.proving.forwards import (
    CPU,
    Runnable,
    absolute_difference,
    batch_effect,
    choice_advice,
    first_item,
    is_finite,
    largest_of,
    last_item,
    run,
)
from export.proving.padded import largest_change
from export.proving.reference import ParityReference
from models.definitions.definition import Definition, HeldOut, Progress
from models.manifest import Difference, Parity
from models.tensors import Array, TensorSpec, Tolerance, stack
from models.timing import MIN_ROUNDS, time_interleaved

MOST_PACED = 2  # items in a batch whose time is compared with eager's
QUICK_S = 0.01
# The share of a lossy tolerance by which a form's answers to an item alone, in a batch and padded
# may differ. Kernels add in another order: one unit in the last place of bf16 is up to 0.8 %, which
# is within a fifth of its tolerance.
STEADY = 0.2
ALONE = "compared with the item's answer alone: "
TINY = 1e-6  # relative differences use at least this magnitude


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
            _check(each.what, spec, definition, tolerance, expected, answer)
            difference = absolute_difference(expected, answer)
            scale = np.maximum(np.abs(expected.astype(np.float64)), TINY)
            pair = (largest_of(difference), largest_of(difference / scale))
            worst[spec.name] = (
                max(worst[spec.name][0], pair[0]),
                max(worst[spec.name][1], pair[1]),
            )
        alone = run(exported, definition, last_item(each.inputs), device)
        effect = batch_effect(f"{each.what}:", definition, steady, alone, outputs)
        invariance = max(invariance, effect)
        largest = max(so_far, *(absolute for absolute, _ in worst.values()))
        progress(done, len(against.comparisons), f"largest difference {largest:.1e}")
    forward = partial(run, exported, definition, device=device)
    for batch in against.padded:
        largest_change("", batch, forward, tolerance)
        own = tuple(first_item(forward(stack([item]))) for item in batch.items)
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
    few = (each for each in against.comparisons if each.size <= MOST_PACED)
    inputs = max(few, key=attrgetter("bytes")).inputs
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
    if not is_finite(outputs[first]):
        raise ParityError(f"held-out set: output {first!r} is not finite")
    if held_out.score is not None:
        return held_out.score(outputs, held_out.labels)
    right = int(np.sum(outputs[first].argmax(axis=-1) == held_out.labels))
    return right / len(held_out.labels)


def _check(
    what: str,
    spec: TensorSpec,
    definition: Definition,
    tolerance: Tolerance,
    expected: Array,
    answers: Array,
) -> None:
    if not is_finite(answers):
        raise ParityError(f"{what}: output {spec.name!r} is not finite, eager's is")
    for want, answer in zip(expected, answers, strict=True):
        excess = tolerance.excess(want, answer)
        if excess is not None:
            choice = choice_advice(spec, definition)
            advice = f"; {choice}" if choice else ""
            raise ParityError(f"{what}: output {spec.name!r} {excess}{advice}")
