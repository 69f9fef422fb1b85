"""Loads a variant's file as a callable; the same code verifies it and serves it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, assert_never

import numpy as np
import torch

from models.bounds import mismatch, shared_axes
from models.manifest import Format, NativeCode, OperatorLibrary, Variant
from models.plan import same_release
from models.processor import (
    DeviceKind,
    Processor,
    cpu_flags,
    machine,
    this_cpu,
)
from models.runtimes.base import VariantFile
from models.runtimes.onnx_models import load_onnx
from models.runtimes.openvino_models import load_openvino
from models.runtimes.operators import load_operators
from models.runtimes.packages import Package, load_package
from models.runtimes.torchscript import has_torchscript, load_torchscript
from models.tensors import Arrays, TensorSpec

Forward: TypeAlias = Callable[..., Any]  # one tensor per input -> a tensor, or a sequence of them


class WrongMachine(Exception):
    """A compiled file that this machine or this torch must not run."""


# Formats of optional runtimes, and the names of these for people.
RUNTIMES: Mapping[Format, str] = {"onnx": "ONNX Runtime", "openvino": "OpenVINO"}


def kinds_here() -> tuple[DeviceKind, ...]:
    """Return the kinds of device on this machine."""
    return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def input_tensors(arrays: Arrays, inputs: Sequence[TensorSpec]) -> list[torch.Tensor]:
    """Return the inputs of a forward, in their order.

    They share the arrays' memory; a read-only array is copied, because torch warns about it.
    """
    values = [arrays[spec.name] for spec in inputs]
    return [torch.from_numpy(each if each.flags.writeable else each.copy()) for each in values]


def sequence_of(result: Any) -> Sequence[Any]:
    """Return the outputs of a forward as a sequence, even a single one."""
    return result if isinstance(result, tuple | list) else (result,)


class StagedForm:
    """Parts of a model that run one after the other, each on the outputs of its predecessor."""

    def __init__(self, parts: Sequence[Forward]) -> None:
        self._parts = tuple(parts)

    def __call__(self, *tensors: torch.Tensor) -> Any:
        result: Any = tensors
        for part in self._parts:
            result = part(*sequence_of(result))
        return result


class CompiledForm:
    """A loaded package with checks of its inputs, which the package itself does not do.

    Args:
        inputs: the specs that the package was compiled for.
    """

    def __init__(self, package: Package, inputs: Sequence[TensorSpec]) -> None:
        self._package = package
        self._inputs = [
            (spec, getattr(torch, spec.dtype), spec.item_shape if spec.is_fixed else None)
            for spec in inputs
        ]
        self._shared_axes = shared_axes(inputs)

    def __eq__(self, other: object) -> bool:
        """Whether it is the same package, with the same checks."""
        if not isinstance(other, CompiledForm):
            return NotImplemented
        return self._package is other._package and self._inputs == other._inputs

    def __hash__(self) -> int:
        """Return a hash of the package."""
        return hash(self._package)

    def __call__(self, *tensors: torch.Tensor) -> Sequence[torch.Tensor]:
        """Run one forward.

        Raises:
            ValueError: if the package was not compiled for such a tensor.
        """
        if len(tensors) != len(self._inputs):
            raise ValueError(f"{len(tensors)} inputs given, but {len(self._inputs)} are expected")
        size = tensors[0].shape[:1]
        for (spec, dtype, fixed_shape), tensor in zip(self._inputs, tensors, strict=True):
            shape = tensor.shape
            item = shape[1:]
            fits = item == fixed_shape if fixed_shape is not None else spec.takes(tuple(item))
            if not (fits and shape and shape[:1] == size and tensor.dtype == dtype) or 0 in shape:
                raise ValueError(
                    f"input {spec.name!r} is {tensor.dtype}{list(shape)}, but the package was "
                    f"compiled for {spec.dtype}{list(spec.shape)} and a batch of {list(size)}"
                )
        if self._shared_axes:
            shapes = zip(self._inputs, tensors, strict=True)
            differ = mismatch(
                self._shared_axes, {s.name: each.shape[1:] for (s, _, _), each in shapes}
            )
            if differ is not None:
                raise ValueError(f"input {differ.second.input!r}: {differ}")
        return self._package([tensor.contiguous() for tensor in tensors])


def load_form(
    files: Sequence[VariantFile],
    file_format: Format,
    inputs: Sequence[TensorSpec],
    device: torch.device,
    *,
    optimized: bool = False,
    replicas: int | None = None,
    operators: Sequence[OperatorLibrary] = (),
) -> Forward:
    """Load any variant as a callable on a device; equal ones in use share their weights.

    Args:
        files: of the variant; of its stages, in their order.
        file_format: their format.
        inputs: of the model.
        device: where it runs.
        optimized: apply `optimize_for_inference` to a TorchScript file.
        replicas: how many share it; None: as many as the cores allow.
        operators: the libraries whose operators it calls.

    Raises:
        ArchiveError: if a file must not be unpacked.
        NotInstalled: if its runtime is missing, or a library of operators.
        RuntimeError: if torch, or its runtime, cannot read it.
    """
    compute_in_float32()
    load_operators(operators)
    if len(files) > 1:
        return StagedForm([load_torchscript(each, device) for each in files])
    (file,) = files
    if file_format == "torchscript":
        return load_torchscript(file, device, optimized=optimized)
    if file_format == "onnx":
        return load_onnx(file, keep=all(spec.is_fixed for spec in inputs))
    if file_format == "openvino":
        return load_openvino(file, replicas)
    if file_format == "aotinductor":
        return CompiledForm(load_package(file, device), inputs)
    assert_never(file_format)


def compute_in_float32() -> None:
    """Make torch compute float32 exactly, even in convolutions on CUDA devices.

    Torch's default for these is TF32, which has 10 bits for the fraction instead of 23.
    """
    torch.backends.cudnn.allow_tf32 = False


def processor_of(device: torch.device, threads: int) -> Processor:
    """Return the processor that a device's times refer to; `threads` matters only on the CPU."""
    if device.type == "cpu":
        return this_cpu(threads)
    return Processor(kind="cuda", name=torch.cuda.get_device_name(device), threads=1)


def check_runs_here(variant: Variant, device: torch.device, torch_version: str) -> None:
    """Check that this machine may run a variant: compiled code is for one processor family.

    Raises:
        WrongMachine: with what is required and what this machine has.
    """
    if device.type not in variant.device_kinds:
        kinds = ", ".join(variant.device_kinds)
        raise WrongMachine(f"{variant.file} runs on {kinds}, not on {device}")
    if variant.format == "torchscript" and not has_torchscript():
        raise WrongMachine(
            f"{variant.file} is TorchScript, which torch {torch_version} does not run: export the "
            "model again, with another variant such as compiled or onnx"
        )
    if variant.native is not None:
        _check_native(variant.file, variant.native, device)
        if not same_release(variant.torch_version, torch_version):
            raise WrongMachine(
                f"{variant.file} was compiled by torch {variant.torch_version} and runs only with "
                f"that version; this is {torch_version}: export the model again with it"
            )


@contextlib.contextmanager
def intra_op_threads(count: int) -> Iterator[None]:
    """Compute with this number of threads in this thread, then restore the previous one."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def named_outputs(result: object, specs: Sequence[TensorSpec]) -> dict[str, np.ndarray[Any, Any]]:
    """Return the outputs of a forward as host arrays, by name.

    Raises:
        ValueError: if they do not match the specs.
    """
    outputs = declared_outputs(result, specs)
    return {spec.name: output.cpu().numpy() for spec, output in zip(specs, outputs, strict=True)}


def declared_outputs(result: object, specs: Sequence[TensorSpec]) -> list[torch.Tensor]:
    """Return the outputs of a forward as tensors on its device, in the order of the specs.

    Raises:
        ValueError: if they do not match the specs.
    """
    outputs = sequence_of(result)
    if len(outputs) != len(specs):
        raise ValueError(
            f"the model returned {len(outputs)} outputs, but {len(specs)} are declared"
        )
    for spec, output in zip(specs, outputs, strict=True):
        if not isinstance(output, torch.Tensor):
            raise ValueError(f"output {spec.name!r} is not a tensor but {type(output).__name__}")
        if output.dtype != getattr(torch, spec.dtype):
            raise ValueError(f"output {spec.name!r} is {output.dtype}, not {spec.dtype}")
    return list(outputs)


def _check_native(file: str, native: NativeCode, device: torch.device) -> None:
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        here = frozenset([f"sm_{major}{minor}"])
    else:
        here = cpu_flags()
    missing = [need for need in native.requires if need not in here]
    if native.architecture != machine() or missing:
        lacks = f", without {', '.join(missing)}" if missing else ""
        raise WrongMachine(
            f"{file} is compiled for {native.architecture} with {', '.join(native.requires)}; "
            f"{device} here is {machine()}{lacks}"
        )
