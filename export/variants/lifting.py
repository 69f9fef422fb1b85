"""Converts torch.export programs to plain modules, and TorchScript by way of such programs.

`ExportedProgram.module()` can be neither scripted nor traced: it flattens its arguments in Python,
and a trace of it would fix every size.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.export.graph_signature import ConstantArgument

from export.errors import ExportError
from models.runtimes.torchscript import frozen_graph, nodes_of

# Built from nodes whose weights are parameters: int8 and other variants look for modules.
LINEAR = torch.ops.aten.linear.default
CONVOLUTION = torch.ops.aten.conv2d.default
SIZES = ("aten::size", "aten::numel", "aten::sym_size", "prim::shape")
FROM_NUMBERS = (
    "prim::NumToTensor",
    "aten::tensor",
    "aten::scalar_tensor",
    "prim::If",
    "prim::Loop",
)
CHECKS = ("_assert_scalar", "_assert_tensor_metadata", "_assert_async", "sym_constrain_range")


def plain_module(program: torch.export.ExportedProgram) -> fx.GraphModule:
    """Return the program as a module that can be scripted, exported again and quantized.

    Layers become modules again, sizes are read from tensors, and operators lose the names of their
    overloads, which TorchScript finds by itself. It takes only the tensors of the program's
    arguments: numbers and None are as they were when it was exported.

    Raises:
        ExportError: if an output is not a tensor.
    """
    source: Any = program.module(check_guards=False)
    graph = fx.Graph()
    values: dict[fx.Node, Any] = {}
    inputs = [each.arg for each in program.graph_signature.input_specs]
    constants = {each.name: each.value for each in inputs if isinstance(each, ConstantArgument)}
    modules: dict[str, Any] = {}
    for node in source.graph.nodes:
        if node.op == "placeholder":
            # Not its name, which is another one if the argument is called `max` or `round`.
            is_given = node.target in constants
            values[node] = constants[node.target] if is_given else graph.placeholder(node.name)
        elif node.op == "get_attr":
            tensor = operator.attrgetter(node.target)(source)
            modules[node.target] = tensor
            values[node] = graph.get_attr(node.target)
        elif node.op == "output":
            graph.output(_outputs(program, [_value_of(each, values) for each in node.args[0]]))
        elif node.op == "call_function":
            result = _node(graph, node, values, source, modules)
            if result is not None:
                values[node] = result
    root = nn.Module()
    for name, value in modules.items():
        _put(root, name, value)
    module = fx.GraphModule(root, graph).eval()
    module.graph.eliminate_dead_code()  # the inputs of removed checks
    module.delete_all_unused_submodules()
    module.recompile()
    return module


def convert(module: torch.jit.ScriptModule, example: tuple[torch.Tensor, ...]) -> fx.GraphModule:
    """Convert TorchScript to a Python module, with torch's own converter to torch.export.

    Raises:
        Exception: what the converter raises, of many classes.
    """
    from torch._export.converter import TS2EPConverter  # noqa: PLC0415 - slow, and not public

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return plain_module(TS2EPConverter(module, example).convert())


def branches_on_sizes(module: torch.jit.ScriptModule) -> bool:
    """Tell whether a condition depends on a tensor's size; one that only raises does not count.

    Numbers of axes are no sizes: torch's own layers check them. Conditions on values count neither:
    the converter keeps both branches of these.

    Args:
        module: in evaluation mode; it is not changed.
    """
    return any(
        _is_sized(node.inputsAt(0))
        for node in nodes_of(frozen_graph(module))  # without the conditions that are known
        if node.kind() == "prim::If" and not any(map(_raises, node.blocks()))
    )


def _raises(block: Any) -> bool:
    return any(node.kind() == "prim::RaiseException" for node in block.nodes())


def _is_sized(condition: Any) -> bool:
    """Tell whether a number is computed from a size of a tensor."""
    waiting, seen = [condition], set()
    while waiting:
        value = waiting.pop()
        node = value.node()
        if value.debugName() in seen or node.kind() == "prim::Param":
            continue
        seen.add(value.debugName())
        inputs = list(node.inputs())
        if node.kind() in SIZES:
            return True
        if node.kind() == "aten::len":
            kind = inputs[0].type().kind()
            if kind == "TensorType":
                return True
            if inputs[0].node().kind() == "aten::size":
                continue  # the number of axes
        if value.type().kind() != "TensorType" or node.kind() in FROM_NUMBERS:
            waiting += inputs
            waiting += [output for block in node.blocks() for output in block.outputs()]
    return False


def _value_of(output: Any, values: Mapping[fx.Node, Any]) -> Any:
    if not isinstance(output, fx.Node):
        raise ExportError(f"the program returns {output}, which is not a tensor")
    return values[output]


def _outputs(program: torch.export.ExportedProgram, flat: Sequence[Any]) -> Any:
    """Return the outputs as the program does: one, a tuple, or a dict."""
    spec = program.call_spec.out_spec
    if spec is not None and spec.type is dict and len(spec.context) == len(flat):
        return dict(zip(map(str, spec.context), flat, strict=True))
    return tuple(flat) if len(flat) > 1 else flat[0]


def _node(
    graph: fx.Graph,
    node: fx.Node,
    values: Mapping[fx.Node, Any],
    source: Any,
    modules: dict[str, Any],
) -> Any:
    name = getattr(node.target, "_opname", "")
    if name in CHECKS:
        return None  # a size check, which TorchScript does not know; the contract has the sizes
    args = fx.node.map_arg(node.args, lambda each: values[each])
    kwargs = dict(fx.node.map_arg(dict(node.kwargs), lambda each: values[each]))
    if name == "sym_size":
        return graph.call_method("size", args)
    layer = _layer(node, source)
    if layer is not None:
        modules[f"layer_{node.name}"] = layer
        return graph.call_module(f"layer_{node.name}", (args[0],))
    if isinstance(node.target, torch._ops.OpOverload):
        kwargs.pop("pin_memory", None)
        if str(kwargs.get("device")) == "cpu":
            kwargs.pop("device")  # the default; TorchScript cannot parse torch.fx's form of it
        if node.target._schema.is_mutable:  # torch.fx does not see that on a packet
            fx.node.has_side_effect(node.target.overloadpacket)
        return graph.call_function(node.target.overloadpacket, args, kwargs)
    if not callable(node.target):
        raise TypeError(f"bug: {node.target!r} is not a function")
    return graph.call_function(node.target, args, kwargs)


def _layer(node: fx.Node, source: Any) -> Any:
    """Return the layer that a node computes, if its weights are parameters of the model."""
    if node.target not in (LINEAR, CONVOLUTION) or node.kwargs:
        return None
    args: Sequence[Any] = node.args
    operands = [*args, *[None] * (3 - len(args))]
    tensors = []
    for each in operands[1:3]:
        if each is not None and not (isinstance(each, fx.Node) and each.op == "get_attr"):
            return None
        tensors.append(None if each is None else operator.attrgetter(str(each.target))(source))
    weight, bias = tensors
    if weight is None:
        return None
    if node.target is LINEAR:
        layer: Any = nn.Linear(weight.shape[1], weight.shape[0], bias is not None)
    else:
        options = [*args[3:], *([1, 1], [0, 0], [1, 1], 1)[len(args[3:]) :]]
        stride, padding, dilation, groups = options
        layer = nn.Conv2d(
            weight.shape[1] * groups,
            weight.shape[0],
            tuple(weight.shape[2:]),
            tuple(stride),
            tuple(padding),
            tuple(dilation),
            groups,
            bias is not None,
        )
    layer.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return layer


def _put(root: nn.Module, name: str, value: Any) -> None:
    """Register a tensor or a module under a dotted name."""
    *folders, last = name.split(".")
    at: Any = root
    for folder in folders:
        if folder not in at._modules:
            at.add_module(folder, nn.Module())
        at = at._modules[folder]
    if isinstance(value, nn.Module):
        at.add_module(last, value)
    elif isinstance(value, nn.Parameter):
        at.register_parameter(last, value)
    else:
        at.register_buffer(last, value)
