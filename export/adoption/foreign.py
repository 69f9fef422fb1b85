"""Runs a model that was created elsewhere on samples, and finds out what it returns."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, get_args

import numpy as np
import torch
from torch import fx, nn

from export.adoption.outputs import Outputs, by_name
from export.errors import ExportError, UsageError, reason
from export.probing import traces
from export.probing.examples import Examples, Shapes
from export.probing.samples import (
    SEED,
    USUAL,
    Samples,
    draw,
    sample_bytes,
    shapes_in_steps,
    starts_large,
)
from export.reading import advice
from export.reading.model_files import FAILURES
from export.variants.graphs import OnnxModule
from models.codec_specs import CodecSpec
from models.padding import padding_of
from models.runtimes.forms import input_tensors
from models.tensors import ANY_SIZE, Arrays, Dimension, Dtype, TensorSpec

BATCHES = (1, 2, 3)
OTHER_BATCHES = (*range(1, 9), 16, 32, 64)  # tried if it runs on none of those, to say why
MAX_SAMPLE_BYTES = 256 * 1024 * 1024  # one batch of the largest of BATCHES
MAX_LARGER_BYTES = 8 * 1024 * 1024  # the same, for pairs after the first one that runs
MAX_LARGEST_S = 1.0  # of the last pair, if samples are to have its larger size too
LARGER_BUDGET_S = 20.0  # pairs that would take longer, by the size of their samples, are left out

Sizes: TypeAlias = tuple[int, Shapes]  # the batch size, and the shapes of its items


class DoesNotRun(ExportError):
    """The model fails on inputs of the given shapes, or its outputs are not finite."""


class NotFinite(DoesNotRun):
    """The model returns NaN or infinity for the samples."""


def infer(
    module: nn.Module,
    inputs: tuple[TensorSpec, ...],
    codec: CodecSpec,
    names: Sequence[str] = (),
    original: nn.Module | None = None,
    examples: Examples | None = None,
) -> tuple[tuple[TensorSpec, ...], Samples]:
    """Run the model on samples of several batch sizes, and of several sizes of free axes.

    Args:
        module: the model.
        inputs: of the model.
        codec: how pictures are normalised.
        names: of the wanted outputs, see `by_name`.
        original: the model before it was rewritten, which must give the same answers.
        examples: real inputs, on which it must run; other sizes are made of them. None: samples are
            random.

    Returns:
        its outputs, with every axis that differed as a free one; and samples like the examples,
        like the smallest on which it ran, and like usual ones. The last one's sizes differ from the
        first one's in as many axes as possible.

    Raises:
        UsageError: if the model accepts another number of inputs, a sample would be too large, or
            the names do not fit.
        ExportError: if it fails on the samples, is not deterministic, answers differently from the
            original, or returns something that cannot be served.
    """
    _check_inputs(module, inputs)
    traces.check_evaluating(module)
    source = examples or codec
    own = _of(examples, inputs) if examples else ()
    try:
        runs = _runs(module, inputs, source, own, names, original)
    except DoesNotRun as error:
        cause = _with_cause(error, module, inputs, source, own[0])
        raise DoesNotRun(f"--examples: {cause}") from error
    is_fixed = all(spec.is_fixed for spec in inputs)
    pairs = [] if own and is_fixed else _affordable(inputs)
    shapes: list[Shapes] = []
    took = size = 0.0
    for index, pair in enumerate(pairs):
        sample_size = sample_bytes(inputs, BATCHES[-1], pair[-1])
        too_long = took and took * sample_size / size > LARGER_BUDGET_S
        if shapes and (sample_size > MAX_LARGER_BYTES or too_long):
            break
        began = time.perf_counter()
        try:
            new_runs = _runs(module, inputs, source, pair, names, original)
        except DoesNotRun as error:
            if not shapes and not own and pair == pairs[-1]:
                raise _with_cause(error, module, inputs, source, pair[-1]) from error
            continue
        took, size = time.perf_counter() - began, sample_size
        runs |= new_runs
        if not shapes:
            shapes += pair
        elif index <= USUAL:
            shapes[2:] = [pair[0]]
        elif took <= MAX_LARGEST_S and starts_large(inputs):
            shapes[3:] = [pair[-1]]
    shapes = [*own, *(each for each in shapes if each not in own)]
    if not shapes:
        raise RuntimeError("a bug in infer: no sizes were tried")
    if own:
        shapes.sort(key=lambda each: _differences(own[0], each))
    with contextlib.suppress(DoesNotRun):  # all free sizes may have to be equal
        runs |= _runs(module, inputs, source, _apart(inputs, shapes), names, original)
    return _outputs(runs, inputs), Samples(inputs, codec, tuple(dict.fromkeys(shapes)), examples)


def _of(examples: Examples, inputs: Sequence[TensorSpec]) -> tuple[Shapes, ...]:
    """Return the shapes of examples whose batches fit into memory; the smallest must fit."""
    shapes = examples.shapes()
    sizes = [sample_bytes(inputs, BATCHES[-1], each) for each in shapes]
    _check_bytes(min(sizes), "--examples", "give smaller items")
    return tuple(each for each, size in zip(shapes, sizes, strict=True) if size <= MAX_SAMPLE_BYTES)


def _differences(one: Shapes, other: Shapes) -> int:
    """Return how many axes have different sizes."""
    return sum(
        mine != its
        for first, second in zip(one, other, strict=True)
        for mine, its in zip(first, second, strict=True)
    )


def _apart(inputs: Sequence[TensorSpec], shapes: Sequence[Shapes]) -> tuple[Shapes, ...]:
    """Return shapes whose padded axes differ in size from other free axes; none if all are padded.

    They show which axes of the outputs have the padded size.
    """
    padding = padding_of(inputs, ())
    if padding is None:
        return ()
    small, large = shapes[0], shapes[min(1, len(shapes) - 1)]
    names = [[axis.name for axis in spec.axes] for spec in inputs]
    combination = tuple(
        tuple(
            larger if name == padding.dimension.name else size
            for name, size, larger in zip(each, one, other, strict=True)
        )
        for each, one, other in zip(names, small, large, strict=True)
    )
    return () if combination in (small, large) else (combination,)


def _affordable(inputs: tuple[TensorSpec, ...]) -> list[tuple[Shapes, ...]]:
    """Return the shapes of samples whose batches fit into memory; the smallest must fit.

    Free axes have two sizes each, or one if their bounds allow no other.
    """
    batch = BATCHES[-1]
    pairs = [tuple(dict.fromkeys(pair)) for pair in shapes_in_steps(inputs)]
    smallest = sample_bytes(inputs, batch, pairs[0][-1])
    _check_bytes(smallest, "--input", "give smaller sizes, or -1 for a free size")
    return [pair for pair in pairs if sample_bytes(inputs, batch, pair[-1]) <= MAX_SAMPLE_BYTES]


def _check_bytes(size: int, option: str, advice: str) -> None:
    if size > MAX_SAMPLE_BYTES:
        raise UsageError(
            f"{option}: a sample batch of {BATCHES[-1]} items has {size:,} bytes; at most "
            f"{MAX_SAMPLE_BYTES:,} are tried: {advice}"
        )


def _runs(
    module: nn.Module,
    inputs: tuple[TensorSpec, ...],
    source: CodecSpec | Examples,
    several: Sequence[Shapes],
    names: Sequence[str],
    original: nn.Module | None,
) -> dict[Sizes, Outputs]:
    """Return dtypes and shapes of the outputs for batches of every size."""
    rng = np.random.default_rng(SEED)
    runs: dict[Sizes, Outputs] = {}
    if not several:
        return runs
    for shapes in several:
        for batch in BATCHES:
            sample = draw(inputs, source, rng, batch, shapes)
            drawn = {name: array.copy() for name, array in sample.items()}
            outputs = by_name(_run(module, inputs, sample), names)
            _check_finite(outputs, inputs, source)
            runs[batch, shapes] = {name: tensor.to("meta") for name, tensor in outputs.items()}
    before, writes = _state(module), _writes(module)
    first = {name: array.tobytes() for name, array in sample.items()}
    outputs = {name: tensor.clone() for name, tensor in outputs.items()}  # may be the input itself
    again = by_name(_run(module, inputs, sample), names)
    is_same = _same(outputs, again)
    for name, array in sample.items():
        changes_again = array.tobytes() != first[name]
        if changes_again or (not is_same and first[name] != drawn[name].tobytes()):
            raise ExportError(
                f"the model changes its input {name!r} in place, so that the same input gives "
                "another answer when it is run again: write x = x - mean instead of x -= mean, and "
                "x.add(1) instead of x.add_(1), or begin with x = x.clone()"
            )
    state_names = [name for name, now in _state(module).items() if not _alike(now, before[name])]
    if not is_same and not state_names:
        now = _writes(module)
        written = [name for name in writes if now.get(name) != writes[name]]
        state_names = written or traces.assigned_attributes(module)
    if state_names:
        raise ExportError(
            f"the model has a state: a forward changes {', '.join(map(repr, state_names[:3]))}, "
            "so an answer depends on the requests before it, of other callers too. Take the state "
            "as an input and return the new one as an output, or do not keep it"
        )
    if not is_same:
        raise ExportError(
            "the model gives different answers to the same input: something in it is random, "
            "such as a dropout that was traced in training mode; call model.eval() before "
            "torch.jit.trace; or it keeps a state in a list or a dict: take that as an input and "
            "return the new one as an output"
        )
    if original is not None and not _same(outputs, by_name(_run(original, inputs, sample), names)):
        raise ExportError(
            "the program gives other answers once its operators are rewritten for TorchScript: "
            "script the model instead, torch.jit.script(model.eval()).save('model.pt')"
        )
    return runs


def _state(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return copies of all buffers, which a forward may change."""
    return {name: buffer.clone() for name, buffer in module.named_buffers()}


def _writes(module: nn.Module) -> dict[str, int]:
    """Return how often each parameter has been written to: copies would take too much memory."""
    return {name: parameter._version for name, parameter in module.named_parameters()}


def _alike(now: torch.Tensor, before: torch.Tensor) -> bool:
    if now.shape == before.shape and before.dtype.is_floating_point:
        return torch.equal(now.nan_to_num(), before.nan_to_num())
    return torch.equal(now, before)


def _check_finite(
    outputs: Outputs, inputs: Sequence[TensorSpec], source: CodecSpec | Examples
) -> None:
    floats = [
        each
        for each in outputs.values()
        if str(each.dtype).removeprefix("torch.") in get_args(Dtype)
    ]
    if all(bool(torch.isfinite(tensor).all()) for tensor in floats):
        return
    if nan := [spec.name for spec in inputs if spec.nan]:
        raise NotFinite(
            "the model returns NaN or infinite numbers for samples where some numbers of "
            f"{', '.join(map(repr, nan))} are missing: it must replace each NaN of an input, as "
            "torch.where(torch.isnan(x), mean, x) does"
        )
    if isinstance(source, Examples):
        raise NotFinite(
            "the model returns NaN or infinite numbers for some of --examples, so nothing can be "
            "proved against it: give only inputs that it answers with finite numbers"
        )
    raise NotFinite(
        "the model returns NaN or infinite numbers for the samples, so nothing can be proved "
        "against it. Samples are random normal numbers, about half of them below 0 (integers are 0 "
        "or 1, uint8 0 to 255): give inputs as the model takes them, with --examples"
    )


def _same(before: Outputs, after: Outputs) -> bool:
    return before.keys() <= after.keys() and all(
        _equal(tensor, after[name]) for name, tensor in before.items()
    )


def _equal(before: torch.Tensor, after: torch.Tensor) -> bool:
    if before.shape == after.shape and before.dtype.is_floating_point:
        # TorchScript specializes on the second call, and may then add in another order.
        return torch.allclose(before, after, rtol=1e-3, atol=1e-5, equal_nan=True)
    return torch.equal(before, after)


def _run(module: Callable[..., object], inputs: Sequence[TensorSpec], sample: Arrays) -> object:
    try:
        with torch.inference_mode():
            return module(*input_tensors(sample, inputs))
    except FAILURES as error:
        shapes = ", ".join(f"{spec.name} {list(sample[spec.name].shape)}" for spec in inputs)
        raise DoesNotRun(f"the model fails on samples of {shapes}: {reason(error)}") from error


def _with_cause(
    error: DoesNotRun,
    module: nn.Module,
    inputs: tuple[TensorSpec, ...],
    source: CodecSpec | Examples,
    shapes: Shapes,
) -> DoesNotRun:
    """Add a batch size on which the model does run to the error, if there is one, or advice."""
    rng = np.random.default_rng(SEED)
    runs: dict[int, bool] = {}
    for batch in OTHER_BATCHES:
        if sample_bytes(inputs, batch, shapes) <= MAX_SAMPLE_BYTES:
            try:
                _run(module, inputs, draw(inputs, source, rng, batch, shapes))
                runs[batch] = True
            except DoesNotRun:
                runs[batch] = False
    if any(runs.values()) and not all(runs.values()):
        size = next(batch for batch, ran in runs.items() if ran)
        return DoesNotRun(f"{error}. It runs on a batch of {size}: {advice.NO_SIZE}")
    if isinstance(source, Examples):
        return error
    has_sizes = not all(spec.is_fixed for spec in inputs)
    larger = advice.LARGER if has_sizes and not isinstance(error, NotFinite) else ""
    if any(runs.values()):  # on the larger one of two sizes
        return DoesNotRun(f"{error}{larger}")
    numbers = "Samples are random: if it needs others, give --examples"
    return DoesNotRun(f"{error}. {numbers}{larger}")


def _outputs(runs: Mapping[Sizes, Outputs], inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    counts = {len(outputs) for outputs in runs.values()}
    if len(counts) > 1:
        raise ExportError(f"the number of the model's outputs changes: {sorted(counts)}")
    names = [list(outputs) for outputs in runs.values()]
    if strange := [each for each in names if set(each) != set(names[0])]:
        raise ExportError(f"the names of the outputs change: {names[0]}, then {strange[0]}")
    return tuple(
        _output(name, {sizes: outputs[name] for sizes, outputs in runs.items()}, inputs)
        for name in names[0]
    )


def _output(
    name: str, tensors: Mapping[Sizes, torch.Tensor], inputs: Sequence[TensorSpec]
) -> TensorSpec:
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()}
    servable = [dtype for dtype in get_args(Dtype) if {dtype} == dtypes]
    if not servable:
        kinds = " or ".join(sorted(dtypes))
        change = advice.of_output(min(dtypes))
        raise ExportError(f"{name} is {kinds}, which answers cannot carry: {change}")
    for (batch, _), tensor in tensors.items():
        if tensor.shape[:1] != (batch,):
            scalars = all(not each.ndim for each in tensors.values())
            raise ExportError(advice.of_batch_axis(name, batch, tensor.shape, scalars=scalars))
    shape = [-1]
    for (batch, items), tensor in tensors.items():
        if tensor.shape[1:] != tensors[BATCHES[0], items].shape[1:]:
            raise ExportError(
                f"{name} is {list(tensor.shape)} for a batch of {batch}, and "
                f"{list(tensors[BATCHES[0], items].shape)} for one of {BATCHES[0]}: only the first "
                "axis may depend on the batch, because an item's answer must not. If a size "
                "depends on the data, as after nonzero, return a fixed number, padded, and how "
                "many of them are valid"
            )
    shapes = {tuple(tensor.shape[1:]) for tensor in tensors.values()}
    if len({len(each) for each in shapes}) > 1 or any(0 in each for each in shapes):
        raise ExportError(f"{name} has the shapes {sorted(map(list, shapes))}, without the batch")
    shape += [sizes[0] if len(set(sizes)) == 1 else -1 for sizes in zip(*shapes, strict=True)]
    return TensorSpec(
        name=name,
        dtype=servable[0],
        shape=tuple(shape),
        dimensions=_dimensions(shape, tensors, inputs),
    )


def _dimensions(
    shape: Sequence[int], tensors: Mapping[Sizes, torch.Tensor], inputs: Sequence[TensorSpec]
) -> tuple[Dimension, ...]:
    """Return the padded dimension for each axis of an output that always has its size."""
    padding = padding_of(inputs, ())
    if padding is None or -1 not in shape[1:]:
        return ()
    first, at = next(
        (number, at)
        for number, spec in enumerate(inputs)
        for at, axis in enumerate(spec.axes)
        if axis.name == padding.dimension.name
    )
    sizes = [items[first][at] for _, items in tensors]
    return tuple(
        padding.dimension
        if [tensor.shape[at] for tensor in tensors.values()] == sizes
        else ANY_SIZE
        for at, size in enumerate(shape)
        if at and size == -1
    )


def argument_names(module: nn.Module) -> list[str]:
    """Return the names of a model's arguments, in order."""
    if isinstance(module, OnnxModule):
        return [each.name for each in module.session.get_inputs()]
    if isinstance(module, fx.GraphModule):
        return [node.name for node in module.graph.nodes if node.op == "placeholder"]
    return [argument.name for argument in _arguments(module)]


def _arguments(module: nn.Module) -> list[Any]:
    forward: Any = module.forward  # of TorchScript
    return list(forward.schema.arguments[1:])  # without self


def _check_inputs(module: nn.Module, inputs: Sequence[TensorSpec]) -> None:
    names = argument_names(module)
    if isinstance(module, OnnxModule | fx.GraphModule):
        _check_number(inputs, names, names)
        return
    arguments = _arguments(module)
    required = [argument.name for argument in arguments if not argument.has_default_value()]
    _check_number(inputs, required, names)
    for argument in arguments[: len(inputs)]:
        kind = argument.type.annotation_str
        if kind not in ("Tensor", "Optional[Tensor]"):
            raise ExportError(advice.of_argument(argument.name, kind))


def _check_number(
    inputs: Sequence[TensorSpec], required: Sequence[str], names: Sequence[str]
) -> None:
    if not len(required) <= len(inputs) <= len(names):
        raise UsageError(
            f"--input: {len(inputs)} given, but the model takes {len(names)} ({', '.join(names)}); "
            "give --input once for each, in this order"
        )
