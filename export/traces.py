"""What a trace tells of the mode that its model was in."""

from __future__ import annotations

from typing import Any

import torch

from export.errors import ExportError

# Operation -> which of its inputs says that it is training.
MODES = {
    "aten::batch_norm": 5,
    "aten::dropout": 2,
    "aten::feature_dropout": 2,
    "aten::alpha_dropout": 2,
}


def check_evaluating(module: torch.jit.ScriptModule) -> None:
    """Raise where a trace holds layers for good as they are in training.

    There a batch norm mixes the items of a batch, and a dropout is random. Where a module was
    scripted the mode is an attribute, and `eval` sets it after the fact.

    Raises:
        ExportError: naming the layer, and what to do.
    """
    graph: Any = module.inlined_graph  # its nodes live as long as it is held
    for kind, place in MODES.items():
        for node in graph.findAllNodes(kind):
            if list(node.inputs())[place].toIValue() is True:
                raise ExportError(
                    f"the model was traced in training mode: its {kind.removeprefix('aten::')} "
                    "would mix the items of a batch or be random; call model.eval() before "
                    "torch.jit.trace (and make no batch norm with track_running_stats=False)"
                )
