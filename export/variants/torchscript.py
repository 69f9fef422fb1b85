"""`script` and `trace`: the model as TorchScript, frozen."""

from __future__ import annotations

import tempfile
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from export.artifact import write_file
from export.errors import reason
from export.variants.base import Draft, NotApplicable, Subject
from export.variants.graphs import OnnxModule
from export.variants.lifting import branches_on_sizes, convert
from models.choices import Precision
from models.runtimes.forms import compute_in_float32, input_tensors
from models.system.memory_files import memory_file
from models.tensors import stack

Method = Literal["script", "trace"]
# TorchScript as Python, which several variants begin with.
_CONVERTED: weakref.WeakKeyDictionary[nn.Module, nn.Module] = weakref.WeakKeyDictionary()
CONVERTED_BATCH = 3  # torch treats a size of 1 as a constant


@dataclass(frozen=True, slots=True)
class TorchScript:
    """Makes `script`, which keeps control flow, or `trace`, which records one run."""

    method: Method
    precision: Precision = "float32"

    def make(self, subject: Subject, folder: Path) -> Draft:
        file = f"{self.method}.pt"
        check_of_torch(subject)
        try:
            script = to_torchscript(subject.eager, example_of(subject), self.method)
        except Exception as error:  # its own, or anything from the model's code
            raise NotApplicable(f"torch.jit.{self.method} failed: {reason(error)}") from error
        save(freeze(script), folder / file)
        is_torchscript = isinstance(subject.eager, torch.jit.ScriptModule)
        how = "TorchScript as it was given" if is_torchscript else f"torch.jit.{self.method}"
        return Draft(file, f"{how} + torch.jit.freeze", ("cpu", "cuda"))


def to_torchscript(
    module: nn.Module, example: tuple[torch.Tensor, ...], method: Method
) -> torch.jit.ScriptModule:
    """Script a module, or trace it with an example input.

    Raises:
        Exception: what torch or the model's own code raises, of any class.
    """
    if isinstance(module, torch.jit.ScriptModule):
        return module
    compute_in_float32()  # a trace keeps the precision setting of its convolutions
    with torch.no_grad(), warnings.catch_warnings():
        # Warnings: about a module from torch.fx, about each place where a trace may depend on its
        # example (verification finds out), about properties of the model that torch reads.
        warnings.simplefilter("ignore")
        script: torch.jit.ScriptModule
        if method == "script":
            script = torch.jit.script(module)
        else:
            trace: Callable[..., Any] = torch.jit.trace  # untyped in torch
            script = trace(module, example, check_trace=False)
    return script


def check_of_torch(subject: Subject) -> None:
    """Check that torch can run a model.

    Raises:
        NotApplicable: if it is an ONNX file.
    """
    if isinstance(subject.eager, OnnxModule):
        raise NotApplicable("the model is an ONNX file, which torch cannot read")


def in_python(subject: Subject) -> Subject:
    """Return the subject with a Python module, which variants other than TorchScript need.

    Raises:
        NotApplicable: if torch cannot convert its TorchScript, or it is an ONNX file.
    """
    check_of_torch(subject)
    if not isinstance(subject.eager, torch.jit.ScriptModule):
        return subject
    if branches_on_sizes(subject.eager):
        raise NotApplicable(
            "this TorchScript branches on a size, and the converter to torch.export keeps only the "
            "branch of its example"
        )
    try:
        module = _CONVERTED.get(subject.eager)
        if module is None:
            module = convert(subject.eager, example_of(subject, CONVERTED_BATCH))
            _CONVERTED[subject.eager] = module
    except Exception as error:  # torch's converter raises many classes
        raise NotApplicable(
            f"this TorchScript cannot be converted to a program of torch.export: {reason(error)}"
        ) from error
    return replace(subject, eager=module)


def script_or_trace(
    module: nn.Module, example: tuple[torch.Tensor, ...]
) -> tuple[torch.jit.ScriptModule, Method]:
    """Script a module, or trace it if scripting fails.

    Raises:
        NotApplicable: if neither works.
    """
    try:
        return to_torchscript(module, example, "script"), "script"
    except Exception:
        try:
            return to_torchscript(module, example, "trace"), "trace"
        except Exception as error:
            raise NotApplicable(
                f"neither script nor trace can compile it: {reason(error)}"
            ) from error


def freeze(module: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """Convert weights to constants and fold them; freezing again changes nothing.

    Raises:
        NotApplicable: if torch cannot freeze it.
    """
    if not hasattr(module, "training"):
        return module  # frozen already: freezing removes that attribute
    try:
        result: torch.jit.ScriptModule = torch.jit.freeze(module.eval())
    except Exception as error:
        raise NotApplicable(f"torch.jit.freeze failed: {reason(error)}") from error
    return result


def save(module: torch.jit.ScriptModule, file: Path) -> None:
    """Write a `.pt` file.

    Raises:
        NotApplicable: if torch cannot save the module.
        ExportError: if the file cannot be written.
    """
    with memory_file() as (content, name), tempfile.TemporaryDirectory() as scratch:
        link = Path(scratch) / "archive"  # torch calls the root of the archive like the file
        link.symlink_to(name)
        try:
            module.save(str(link))
        except Exception as error:
            raise NotApplicable(f"torch cannot save it: {reason(error)}") from error
        write_file(file, content)


def example_of(subject: Subject, batch: int = 1) -> tuple[torch.Tensor, ...]:
    """Return the first golden example, `batch` times: one tensor per input."""
    golden = stack([subject.definition.golden_inputs()[0]] * batch)
    return tuple(input_tensors(golden, subject.definition.inputs))
