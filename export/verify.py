"""Proof that an exported file answers as the eager model does, at every batch size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch

from export.errors import ParityError
from models.definitions.definition import Definition, HeldOut, Progress
from models.manifest import Difference, Parity
from models.tensors import Array, Arrays, TensorSpec, Tolerance

BATCH_SIZES = tuple(range(1, 65))
SEED = 1
# float32 against float32: other kernels add in another order, nothing more.
FLOAT32 = Tolerance(absolute=1e-5, relative=1e-4)

Runnable = Callable[..., object]


def run(module: Runnable, definition: Definition, inputs: Arrays) -> dict[str, Array]:
    """One forward: input name -> array with batch axis, to output name -> array with batch axis.

    Raises:
        ParityError: if the module fails, or its outputs are not the ones that the definition names.
    """
    tensors = [torch.from_numpy(np.array(inputs[spec.name])) for spec in definition.inputs]
    try:
        with torch.inference_mode():
            made = module(*tensors)
    except (torch.jit.Error, RuntimeError, ValueError, TypeError, IndexError) as error:
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in inputs.items())
        # TorchScript tells where first, in many lines, and what in the last one.
        reason = (str(error).strip() or repr(error)).splitlines()[-1]
        raise ParityError(f"the model fails on {shapes}: {reason}") from error
    outputs = made if isinstance(made, tuple | list) else (made,)
    if len(outputs) != len(definition.outputs):
        raise ParityError(f"{len(outputs)} outputs made, {len(definition.outputs)} declared")
    named = {}
    for spec, tensor in zip(definition.outputs, outputs, strict=True):
        array = tensor.numpy()
        if array.dtype != np.dtype(spec.dtype) or not spec.accepts(array.shape[1:]):
            raise ParityError(
                f"output {spec.name!r} is {array.dtype}{list(array.shape)}, "
                f"declared as {spec.dtype}{list(spec.shape)}"
            )
        named[spec.name] = array
    return named


def check_parity(
    eager: Runnable, exported: Runnable, definition: Definition, progress: Progress
) -> Parity:
    """Compare over every batch size from 1 to 64 on random inputs, and on the golden ones.

    Returns:
        the largest differences that were seen.

    Raises:
        ParityError: at the first answer outside the tolerance, or one that is not finite.
    """
    rng = np.random.default_rng(SEED)
    absolute = {spec.name: 0.0 for spec in definition.outputs}
    relative = dict(absolute)
    invariance = 0.0
    batches = _batches(definition, rng)
    for done, (what, inputs) in enumerate(batches, start=1):
        expected, got = run(eager, definition, inputs), run(exported, definition, inputs)
        for spec in definition.outputs:
            _check(what, spec, expected[spec.name], got[spec.name])
            difference = _difference(expected[spec.name], got[spec.name])
            absolute[spec.name] = max(absolute[spec.name], float(difference.max(initial=0)))
            scale = np.maximum(np.abs(expected[spec.name].astype(np.float64)), 1e-6)
            worst = float((difference / scale).max(initial=0))
            relative[spec.name] = max(relative[spec.name], worst)
        first = {name: array[:1] for name, array in inputs.items()}
        alone = run(exported, definition, first)
        for spec in definition.outputs:
            moved = _difference(alone[spec.name], got[spec.name][:1])
            invariance = max(invariance, float(moved.max(initial=0)))
        progress(done, len(batches), f"largest difference {max(absolute.values()):.1e}")
    return Parity(
        outputs={
            name: Difference(max_absolute=absolute[name], max_relative=relative[name])
            for name in absolute
        },
        batch_sizes=BATCH_SIZES,
        batch_invariance=invariance,
    )


def accuracy(module: Runnable, definition: Definition, held_out: HeldOut) -> float:
    """The share of the held-out set whose largest first output is the label."""
    scores = run(module, definition, held_out.inputs)[definition.outputs[0].name]
    return float(np.mean(scores.argmax(axis=-1) == held_out.labels))


def one_batch(items: Sequence[Arrays]) -> Arrays:
    """Stack items of one shape along a new batch axis."""
    return {name: np.stack([item[name] for item in items]) for name in items[0]}


def _batches(definition: Definition, rng: np.random.Generator) -> list[tuple[str, Arrays]]:
    random: Iterable[tuple[str, Arrays]] = (
        (f"random inputs, batch {size}", definition.random_inputs(rng, size))
        for size in BATCH_SIZES
    )
    golden = (
        (f"golden example {index}", one_batch([item]))
        for index, item in enumerate(definition.golden_inputs())
    )
    return [*random, *golden]


def _check(what: str, spec: TensorSpec, expected: Array, got: Array) -> None:
    if expected.dtype.kind == "f" and not np.isfinite(expected).all():
        raise ParityError(f"{what}: the eager model's output {spec.name!r} is not finite")
    excess = FLOAT32.excess(expected, got)
    if excess is not None:
        raise ParityError(f"{what}: output {spec.name!r} {excess}")


def _difference(expected: Array, got: Array) -> Array:
    return np.abs(expected.astype(np.float64) - got.astype(np.float64))
