"""What is known of a model's work: multiplications, and what other runtimes gain."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


def expected(module: nn.Module, gains: Sequence[tuple[Sequence[str], str]]) -> str:
    """Return what a runtime gains for such a model; empty if nothing is known to.

    Args:
        module: the model.
        gains: words in the names of layers and operators, and what models with one of them gained.
    """
    if isinstance(module, torch.jit.ScriptModule):
        names = [str(module.inlined_graph)]
    else:
        names = [type(layer).__name__ for layer in module.modules()]
        graphs = [layer for layer in module.modules() if isinstance(layer, torch.fx.GraphModule)]
        names += [str(node.target) for layer in graphs for node in layer.graph.nodes]
    text = " ".join(names).lower()
    return next((gain for words, gain in gains if any(word in text for word in words)), "")


def multiplications(module: nn.Module, example: tuple[torch.Tensor, ...]) -> int:
    """Count the multiply-adds of a forward in matrix products, convolutions and attention.

    Raises:
        Exception: what the module raises.
    """
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(*example)
    found: int = counter.get_total_flops()
    return found // 2  # a multiplication and an addition are two operations
