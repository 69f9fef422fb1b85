"""Detects traces of models in training mode."""

from __future__ import annotations

from typing import Any

import torch

from export.errors import ExportError

# Operation -> index of its input that says whether it is training.
MODES = {
    "aten::batch_norm": 5,
    "aten::dropout": 2,
    "aten::feature_dropout": 2,
    "aten::alpha_dropout": 2,
}


def check_evaluating(module: torch.jit.ScriptModule) -> None:
    """Raise if a trace contains layers that are fixed in training mode.

    In training mode a batch norm mixes the items of a batch, and a dropout is random. In a scripted
    module the mode is an attribute, which `eval` can still change.

    Raises:
        ExportError: naming the layer, and what to do.
    """
    graph: Any = module.inlined_graph  # its nodes live as long as the graph
    for kind, place in MODES.items():
        for node in graph.findAllNodes(kind):
            if list(node.inputs())[place].toIValue() is True:
                raise ExportError(
                    f"the model was traced in training mode: its {kind.removeprefix('aten::')} "
                    "would mix the items of a batch or be random; call model.eval() before "
                    "torch.jit.trace (and avoid batch norms with track_running_stats=False)"
                )
