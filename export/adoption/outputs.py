"""Names a model's outputs in any structure, and builds a module that returns a tuple.

A server accepts a tensor, or a tuple of tensors in the manifest's order. A model may also return a
dict or a NamedTuple, and the command may name, select and order its outputs. Such a model is
wrapped in a module that only does this.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from pydantic import TypeAdapter, ValidationError
from torch import fx, nn

from export.errors import ExportError, UsageError
from export.variants.graphs import OnnxModule
from models.definitions.definition import Definition
from models.runtimes.forms import input_tensors
from models.tensors import Name, stack

Outputs = dict[str, torch.Tensor]
# How to get an output from a model's result: a function and its argument: `result[0]`,
# `result["boxes"]`, `result.boxes`.
Way: TypeAlias = tuple[Callable[..., Any], int | str]

FLAT = "return all tensors in one tuple or dict, without a second level"
PER_ITEM = "return a tensor with one number for each item"
ADVICE: Mapping[type, str] = {
    **dict.fromkeys((dict, list, tuple), FLAT),
    **dict.fromkeys((bool, float, int), PER_ITEM),
    str: "return the index of a class, and name the classes with --labels",
    type(None): "leave it out",
}
# torchvision's detectors return a list with one dict for each picture.
DETECTOR = (
    "the model returns a list of dicts, but an answer needs tensors with one row for each item. "
    "Wrap it in a module that pads its results to a fixed number, such as boxes [n, 100, 4], "
    "scores [n, 100] and their count [n], and script that"
)


def is_name(text: object) -> bool:
    """Whether a manifest accepts the text as a name."""
    try:
        TypeAdapter(Name).validate_python(text)
    except ValidationError:
        return False
    return True


def by_name(result: object, names: Sequence[str] = ()) -> Outputs:
    """Map names to the outputs of a forward.

    Args:
        result: a tensor, or several in a tuple, list, dict or NamedTuple.
        names: which names of a dict or NamedTuple to use; otherwise a name for each tensor.
            Empty: all of them, under their own names, or as output_0 and so on.

    Raises:
        UsageError: if the names do not fit.
        ExportError: if it does not consist of tensors; the message says what to change.
    """
    own = tuple(result) if isinstance(result, dict) else getattr(result, "_fields", None)
    if isinstance(result, list) and any(isinstance(each, dict) for each in result):
        raise ExportError(DETECTOR)
    values = list(result.values() if isinstance(result, dict) else _several(result))
    if not values:
        raise ExportError("the model returns nothing; it must return a tensor, or several")
    if own is None:
        return _tensors(dict(zip(_names(len(values), names), values, strict=True)))
    parts = dict(zip(own, values, strict=True))
    if strays := [name for name in names if name not in parts]:
        raise UsageError(f"--output {strays[0]}: the model returns {', '.join(map(str, own))}")
    return _tensors({name: parts[name] for name in names or own})


def ways(
    module: nn.Module, names: Sequence[str], order: Sequence[str], *, picked: bool
) -> tuple[Way, ...] | None:
    """Return the ways to the wanted outputs; None: the model needs no wrapper.

    Args:
        module: the model.
        names: the names from `by_name`.
        order: the same names, in the order to serve.
        picked: whether names were given, so a NamedTuple may have more.

    Raises:
        ExportError: if the model's return type may vary.
    """
    if _is_by_name(module):
        return tuple((operator.getitem, name) for name in order)
    if isinstance(module, fx.GraphModule):
        same = list(order) == list(names)
        return None if same else tuple((operator.getitem, names.index(name)) for name in order)
    forward: Any = module.forward
    (return_type,) = (each.type for each in forward.schema.returns)
    if return_type.kind() == "DictType":
        return tuple((operator.getitem, name) for name in order)
    if return_type.kind() not in ("TensorType", "TupleType", "ListType"):
        raise ExportError(
            f"the model returns {return_type.annotation_str}: it must always return a tensor, or "
            "always a tuple, a list or a dict of tensors"
        )
    is_named = return_type.kind() == "TupleType" and not return_type.annotation_str.startswith(
        "Tuple["
    )
    if is_named and picked:
        return tuple((getattr, name) for name in order)
    if list(order) == list(names):
        return None
    return tuple((operator.getitem, names.index(name)) for name in order)


def _is_by_name(module: nn.Module) -> bool:
    """Whether it is an ONNX model, or a program that returns a dict."""
    if not isinstance(module, fx.GraphModule):
        return isinstance(module, OnnxModule)
    last = next(node for node in module.graph.nodes if node.op == "output")
    return isinstance(last.args[0], dict)


def around(module: nn.Module, inputs: int, selection: Sequence[Way]) -> fx.GraphModule:
    """Build a module that calls the model and returns the outputs at the given ways.

    It can be scripted, traced and exported if the model can.

    Args:
        module: the model.
        inputs: how many tensors it accepts.
        selection: the ways, for example from `ways`.
    """
    graph = fx.Graph()
    arguments = tuple(graph.placeholder(f"x{index}") for index in range(inputs))
    result = graph.call_module("inner", arguments)
    outputs = tuple(graph.call_function(function, (result, at)) for function, at in selection)
    graph.output(outputs if len(outputs) > 1 else outputs[0])
    return fx.GraphModule({"inner": module}, graph).eval()


def in_order(module: nn.Module, definition: Definition) -> nn.Module:
    """Wrap a definition's model so that it returns a tuple in the declared order of outputs.

    Outputs in a dict or a NamedTuple are found by their names. AOTInductor cannot write the class
    of a NamedTuple into its package, so even one in the right order is wrapped.

    Raises:
        ExportError: if the names differ from the definition's.
    """
    if definition.stages is not None or isinstance(module, torch.jit.ScriptModule):
        return module
    item = stack([definition.golden_inputs()[0]])
    try:
        with torch.inference_mode():
            result = module(*input_tensors(item, definition.inputs))
    except Exception:  # of any class; the proof runs it again, and reports it
        return module
    own = list(result) if isinstance(result, dict) else list(getattr(result, "_fields", ()))
    names = [spec.name for spec in definition.outputs]
    if not own:
        return module
    if set(own) != set(names):
        raise ExportError(
            f"the model returns {', '.join(map(str, own))}, but the definition declares "
            f"{', '.join(names)}: give the outputs the same names"
        )
    take = operator.getitem if isinstance(result, dict) else getattr
    return around(module, len(definition.inputs), [(take, name) for name in names])


def _several(result: object) -> Sequence[object]:
    return result if isinstance(result, tuple | list) else (result,)


def _names(count: int, names: Sequence[str]) -> Sequence[str]:
    if not names:
        return ("output",) if count == 1 else [f"output_{index}" for index in range(count)]
    if len(names) != count:
        raise UsageError(
            f"--output: {len(names)} given, but the model returns {count}; give --output once for "
            "each, in this order"
        )
    return names


def _tensors(parts: Mapping[Any, Any]) -> Outputs:
    for name, value in parts.items():
        if not isinstance(value, torch.Tensor):
            raise ExportError(
                f"the model returns {type(value).__name__} for {name!r}, but an answer consists of "
                f"tensors: {ADVICE.get(type(value), 'return a tensor')}. Wrap the model in a "
                "module that does so, and script that module"
            )
        if value.is_sparse:
            raise ExportError(f"{name!r} is sparse: call to_dense() on it in the model")
        if not is_name(name):
            raise ExportError(
                f"the model calls an output {name!r}, but a name has 1 to 64 letters, digits, _ "
                "and -: rename it in the model, or select others with --output"
            )
    return dict(parts)
