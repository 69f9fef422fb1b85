"""What is known of a model's work: multiplications, and what other runtimes gain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


def expected_gain(module: nn.Module, gains: Sequence[tuple[Sequence[str], str]]) -> str:
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


@dataclass(frozen=True, slots=True)
class ForwardWork:
    """The multiply-adds of a forward in matrix products, convolutions and attention.

    Attributes:
        linear: of linear layers that were counted; subclasses are not.
    """

    total: int
    linear: int
    convolutions: int

    def share(self, part: int) -> float:
        """Return a part's share of the total, 0 to 1."""
        return part / max(1, self.total)


def work_of(
    module: nn.Module, example: tuple[torch.Tensor, ...], least_weights: int
) -> ForwardWork:
    """Count the multiply-adds of a forward.

    Args:
        module: the model.
        example: its inputs.
        least_weights: smaller linear layers are not counted as such.

    Raises:
        Exception: what the module raises.
    """
    linear = 0

    def count(layer: nn.Linear, _: object, output: torch.Tensor) -> None:
        nonlocal linear
        linear += output.numel() * layer.in_features

    hooks = [
        layer.register_forward_hook(count)
        for layer in module.modules()
        if type(layer) is nn.Linear and layer.weight.numel() >= least_weights
    ]
    try:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            module(*example)
    finally:
        for hook in hooks:
            hook.remove()
    operators = counter.get_flop_counts().get("Global", {})
    convolutions = operators.get(torch.ops.aten.convolution, 0)
    # A multiplication and an addition are two operations.
    return ForwardWork(counter.get_total_flops() // 2, linear, convolutions // 2)
