"""Loads TorchScript files; on the CPU, replicas share a module that keeps no state."""

from __future__ import annotations

import functools
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch

from models.runtimes.base import SharedModels, VariantFile
from models.system.archive import check_archive
from models.system.quiet import QUANTIZED_WARNING, ignore_warnings

_WARNINGS_LOCK = threading.Lock()  # two threads that restore warning filters could leave them off
CONTAINERS = ("ListType", "DictType", "TupleType", "OptionalType", "AnyType")
UNCHANGEABLE = ("BoolType", "DeviceObjType", "FloatType", "IntType", "NoneType", "StringType")
RUNNING_MEAN, TRAINING = 3, 5  # places among the inputs of a normalization
NORMALIZATION = re.compile(r"aten::\w*(batch|instance)_norm\w*")
# What a file raises in its own code; a torch without TorchScript raises no such error.
ScriptError: type[Exception] = getattr(getattr(torch, "jit", None), "Error", RuntimeError)
_MODULES: SharedModels[torch.jit.ScriptModule] = SharedModels()


def has_torchscript() -> bool:
    """Whether this torch can load such files."""
    return hasattr(getattr(torch, "jit", None), "load")


def load_torchscript(
    file: VariantFile, device: torch.device, *, optimized: bool = False
) -> torch.jit.ScriptModule:
    """Load a file to run it; on the CPU, equal ones in use that keep no state are one module.

    `optimized` applies `torch.jit.optimize_for_inference`; on the CPU only.

    Raises:
        ArchiveError: if the file must not be unpacked.
        RuntimeError: if torch cannot read or optimize it.
    """

    def load(path: str) -> torch.jit.ScriptModule:
        module = read_torchscript(path, device)
        return _optimize(module) if optimized else module

    on_cpu = device.type == "cpu"
    return _MODULES.get(
        file, (str(device), optimized), load, lambda module: on_cpu and not keeps_state(module)
    )


def read_torchscript(path: str, device: torch.device) -> torch.jit.ScriptModule:
    """Read a file as a module of its own, in evaluation mode.

    Raises:
        ArchiveError: if the file must not be unpacked.
        RuntimeError: if torch cannot read it.
    """
    with open(path, "rb") as file:
        check_archive(file, "the TorchScript file")
    hush_quantized_tensors()  # int8 files create some
    return _read(path, device).eval()


def _read(path: str, device: torch.device) -> torch.jit.ScriptModule:
    if (native := _native()) is not None:
        wrap: Callable[..., torch.jit.ScriptModule] = torch.jit._recursive.wrap_cpp_module
        return wrap(native.load(path, str(device)))
    load: Callable[..., torch.jit.ScriptModule] = torch.jit.load  # untyped in torch
    return load(path, map_location=device)


def reads_without_gil() -> bool:
    """Whether files are read by machine code, so that other threads run meanwhile."""
    return _native() is not None


@functools.cache
def _native() -> ModuleType | None:
    """The reader that does not hold the GIL, if it has been compiled for this torch."""
    try:
        from models.runtimes import torchscript_file  # noqa: PLC0415
    except ImportError:  # not compiled, or for a torch with other symbols
        return None
    is_for_this = torch.__version__.partition("+")[0] == torchscript_file.TORCH_VERSION
    return torchscript_file if is_for_this else None


def hush_quantized_tensors() -> None:
    """Trigger and suppress the deprecation warning for quantized tensors.

    Torch writes it to stderr once per process when it loads an int8 file, between structured
    logs. Triggered from Python, it is a warning that can be ignored.
    """
    ignore_warnings(message=QUANTIZED_WARNING)
    torch.quantize_per_tensor(torch.zeros(1), 1.0, 0, torch.quint8)


def keeps_state(module: torch.jit.ScriptModule) -> bool:
    """Tell whether a forward may change what later forwards, or those of other threads, read.

    Freezing turns every attribute into a constant that no forward assigns. What is left is state if
    any operator may write to it, or to something in it.

    Args:
        module: in evaluation mode; it is not changed.
    """
    graph = frozen_graph(module)
    aliases: Any = graph.alias_db()  # incompletely typed in torch
    nodes = list(nodes_of(graph))
    written_values = [
        value
        for node in nodes
        if "!" in node.schema()
        for value in node.inputs()
        if value.type().kind() not in UNCHANGEABLE
    ]
    for node in nodes:
        if node.kind() in ("prim::SetAttr", "prim::CallMethod") or _updates_statistics(node):
            return True
        if "Subgraph" in node.attributeNames():  # of another thread: `torch.jit.fork`
            return True
        if node.kind() in ("prim::GetAttr", "prim::Constant"):
            for value in node.outputs():
                if aliases.has_writers(value):
                    return True
                contains = value.type().kind() in CONTAINERS
                if contains and any(
                    aliases.may_contain_alias(each, value) for each in written_values
                ):
                    return True
    return False


def _updates_statistics(node: Any) -> bool:
    """Tell whether it is a normalization that updates its running mean, which no schema says."""
    if not NORMALIZATION.fullmatch(node.kind()):
        return False
    inputs = list(node.inputs())
    if len(inputs) <= TRAINING:
        return True  # another operator: unknown
    has_mean = inputs[RUNNING_MEAN].type().kind() != "NoneType"
    return has_mean and inputs[TRAINING].toIValue() is not False


def frozen_graph(module: torch.jit.ScriptModule) -> Any:
    """Return the graph of a module's forward with its attributes as constants.

    Args:
        module: in evaluation mode; it is not changed.
    """
    # `torch.jit.freeze` refuses a module that is frozen already; this only finds nothing to do.
    return torch._C._freeze_module(module._c, [], True, False)._get_method("forward").graph


def nodes_of(block: Any) -> Iterator[Any]:
    """Yield the nodes of a graph or a block, and those of the blocks within it."""
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from nodes_of(inner)


def _optimize(module: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    # At load, because it changes its argument in place and its result cannot be saved.
    with (
        _WARNINGS_LOCK,
        warnings.catch_warnings(),
    ):  # torch warns about each pass that does not apply
        warnings.simplefilter("ignore")
        result: torch.jit.ScriptModule = torch.jit.optimize_for_inference(module)
        return result
