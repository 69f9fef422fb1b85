"""`bf16` and `fp16`: weights and compute in half precision, inputs and outputs unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import fx, nn

from export.errors import reason
from export.variants.base import Draft, NotApplicable, Subject
from export.variants.layers import convert_to
from export.variants.torchscript import Method, example_of, freeze, in_python, save, to_torchscript
from models.processor import DeviceKind
from models.tensors import TensorSpec

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
KINDS: dict[str, tuple[DeviceKind, ...]] = {"bf16": ("cpu", "cuda"), "fp16": ("cuda",)}


@dataclass(frozen=True, slots=True)
class Half:
    """Makes `bf16` or `fp16`."""

    precision: Literal["bf16", "fp16"]

    def make(self, subject: Subject, folder: Path) -> Draft:
        kinds = KINDS[self.precision]
        if kinds == ("cuda",) and not torch.cuda.is_available():
            raise NotApplicable("it is built and verified on a CUDA device, and there is none")
        subject = in_python(subject)
        if not _computes_in_floats(subject):
            raise NotApplicable("it has no floating-point weights and no float32 input")
        dtype = DTYPES[self.precision]
        try:
            inner = convert_to(subject.eager, dtype)
            for each in inner.modules():
                if isinstance(each, fx.GraphModule):
                    _replace_dtype(each, dtype)
        except Exception as error:  # modules may contain objects that cannot be copied
            raise NotApplicable(f"cannot make a copy in {dtype}: {reason(error)}") from error
        module, method = _compile(inner, dtype, subject)
        file = f"{self.precision}.pt"
        save(freeze(module), folder / file)
        return Draft(file, f"module.to({dtype}) + torch.jit.{method}", kinds)


def _replace_dtype(module: fx.GraphModule, dtype: torch.dtype) -> None:
    """Let operators that request float32 return this dtype, the dtype of weights and inputs."""
    for node in module.graph.nodes:
        args = tuple(dtype if each is torch.float32 else each for each in node.args)
        kwargs = {k: dtype if each is torch.float32 else each for k, each in node.kwargs.items()}
        node.args, node.kwargs = args, kwargs
    module.recompile()


def _computes_in_floats(subject: Subject) -> bool:
    if any(spec.dtype == "float32" for spec in subject.definition.inputs):
        return True
    return any(weight.is_floating_point() for weight in subject.eager.parameters())


def _compile(
    inner: nn.Module, dtype: torch.dtype, subject: Subject
) -> tuple[torch.jit.ScriptModule, Method]:
    inputs, outputs = subject.definition.inputs, subject.definition.outputs
    # A new class each time: torch compiles a class once per process, and defines its forward once.
    outer: nn.Module = type("Outer", (nn.Module,), {})()
    outer.inner = inner
    try:
        module = to_torchscript(outer.eval(), (), "script")
        module.define(_source(dtype, inputs, outputs))
        return module, "script"
    except Exception:  # anything from torch or the traced model's code
        try:
            cast = _Cast(inner, dtype, outputs).eval()
            return to_torchscript(cast, example_of(subject), "trace"), "trace"
        except Exception as error:
            raise NotApplicable(
                f"neither script nor trace can compile it: {reason(error)}"
            ) from error


class _Cast(nn.Module):
    """A module with casts around another one, for tracing."""

    def __init__(self, inner: nn.Module, dtype: torch.dtype, outputs: Sequence[TensorSpec]) -> None:
        super().__init__()
        self.inner = inner
        self._dtype = dtype
        self._outputs = [getattr(torch, spec.dtype) for spec in outputs]

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs = self.inner(
            *(t.to(self._dtype) if t.dtype == torch.float32 else t for t in tensors)
        )
        outputs = outputs if isinstance(outputs, tuple | list) else (outputs,)
        return tuple(t.to(dtype) for t, dtype in zip(outputs, self._outputs, strict=True))


def _source(dtype: torch.dtype, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> str:
    """Write the same casts in TorchScript, with one name per input, because it has no `*args`."""
    names = [f"x{index}" for index in range(len(inputs))]
    call_arguments = ", ".join(
        f"{name}.to({dtype})" if spec.dtype == "float32" else name
        for name, spec in zip(names, inputs, strict=True)
    )
    arguments = ", ".join(f"{name}: Tensor" for name in names)
    if len(outputs) == 1:
        return (
            f"def forward(self, {arguments}) -> Tensor:\n"
            f"    return self.inner({call_arguments}).to(torch.{outputs[0].dtype})\n"
        )
    results = [f"y{index}" for index in range(len(outputs))]
    cast = ", ".join(
        f"{name}.to(torch.{spec.dtype})" for name, spec in zip(results, outputs, strict=True)
    )
    return (
        f"def forward(self, {arguments}):\n"
        f"    {', '.join(results)} = self.inner({call_arguments})\n"
        f"    return {cast}\n"
    )
