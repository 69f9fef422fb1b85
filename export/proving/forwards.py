"""Runs a model or one of its forms on a batch, and compares answers to an item alone and in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch

from export.errors import ParityError, reason
from models.definitions.definition import Definition
from models.runtimes.forms import input_tensors, named_outputs
from models.tensors import Array, Arrays, TensorSpec, Tolerance

FIX = (
    "call model.eval(), and keep operations off axis 0; a model that mixes the items of a batch on "
    "purpose, has one scale for all of them, such as dynamic int8, or was traced with a loop over "
    "one item, such as YOLO's NMS, works with --max-batch-size 1"
)
TIES = (
    "if these are indices of the largest of scores that tie, return the scores too, or allow a "
    "larger share with --integer-share"
)
ROWS = "which rows a model finds may depend on the last digits of a score"

Runnable = Callable[..., object]
CPU = torch.device("cpu")


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


def is_finite(array: Array) -> bool:
    """Whether no number is NaN or infinite."""
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def first_item(batch: Arrays) -> dict[str, Array]:
    """Return the first item, without the batch axis."""
    return {name: array[0] for name, array in batch.items()}


def last_item(batch: Arrays) -> dict[str, Array]:
    """Return the last item, as a batch of one."""
    return {name: array[-1:] for name, array in batch.items()}


def batch_effect(
    what: str,
    definition: Definition,
    tolerance: Tolerance,
    alone: Arrays,
    together: Arrays,
    *,
    at: Literal["first", "last"] = "last",
) -> float:
    """Return the largest difference between an item's answers alone and in its batch.

    Args:
        what: where the batch is from, for messages.
        definition: the model's contract.
        tolerance: how far both may differ.
        alone: the item's outputs, as a batch of one.
        together: the outputs of its batch.
        at: its place in the batch.

    Raises:
        ParityError: if they differ by more.
    """
    most = 0.0
    for spec in definition.outputs:
        one, inside = alone[spec.name][-1], together[spec.name][-1 if at == "last" else 0]
        excess = tolerance.excess(one, inside)
        if excess is not None:
            choice = choice_advice(spec, definition)
            raise ParityError(
                f"{what} output {spec.name!r} of the {at} item in its batch, compared with that of "
                f"the item alone: {excess}; an answer must not depend on what else is in its "
                f"batch: {f'{choice}; else {FIX}' if choice else FIX}"
            )
        most = max(most, largest_of(absolute_difference(one, inside)))
    return most


def absolute_difference(expected: Array, answer: Array) -> Array:
    """Return the absolute differences."""
    return np.abs(expected.astype(np.float64) - answer.astype(np.float64))


def largest_of(differences: Array) -> float:
    """Return the largest difference; 0 of an empty array."""
    return float(differences.max(initial=0))


def choice_advice(spec: TensorSpec, definition: Definition) -> str | None:
    """Return advice for an output that depends on a choice, of rows or classes; else None."""
    if spec.count or any(each.count == spec.name for each in definition.outputs):
        if definition.real_inputs:
            return f"{ROWS}: use scores that tell rows apart, or return fewer rows"
        return f"{ROWS}, above all in noise: give real inputs with --examples"
    return None if spec.dtype.startswith("float") else TIES
