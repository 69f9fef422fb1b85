"""What the graph of a model shows: training mode, and attributes that a forward assigns."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn

from export.errors import ExportError
from export.variants.graphs import OnnxModule

# Operation -> index of its input that says whether it is training.
MODES = {
    "aten::batch_norm": 5,
    "aten::dropout": 2,
    "aten::feature_dropout": 2,
    "aten::alpha_dropout": 2,
}


def check_evaluating(module: nn.Module) -> None:
    """Raise if a trace, or a program of torch.export, has layers fixed in training mode.

    In training mode a batch norm mixes the items of a batch, and a dropout is random. In a scripted
    module the mode is an attribute, which `eval` can still change.

    Raises:
        ExportError: with the layer and the fix.
    """
    if isinstance(module, fx.GraphModule):
        for node in module.graph.nodes:
            kind = f"aten::{getattr(node.target, '__name__', '')}"
            if kind in MODES and node.args[MODES[kind] : MODES[kind] + 1] == (True,):
                raise ExportError(
                    f"the model was exported in training mode: its {kind.removeprefix('aten::')} "
                    "would mix the items of a batch or be random; call model.eval() before "
                    "torch.export.export"
                )
        return
    if isinstance(module, OnnxModule):
        return  # what it returns shows the mode
    graph: Any = module.inlined_graph  # its nodes live as long as the graph
    for kind, place in MODES.items():
        for node in graph.findAllNodes(kind):
            if list(node.inputs())[place].toIValue() is True:
                raise ExportError(
                    f"the model was traced in training mode: its {kind.removeprefix('aten::')} "
                    "would mix the items of a batch or be random; call model.eval() before "
                    "torch.jit.trace (and avoid batch norms with track_running_stats=False)"
                )


def assigned_attributes(module: nn.Module) -> list[str]:
    """Return the names of the attributes that a forward of a TorchScript module assigns."""
    if not isinstance(module, torch.jit.ScriptModule):
        return []
    graph: Any = module.inlined_graph  # its nodes live as long as the graph
    return sorted({node.s("name") for node in graph.findAllNodes("prim::SetAttr")})
