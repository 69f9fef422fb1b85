"""Counts the work of a forward, by which variants decide how and whether they are built."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


def multiplications(module: nn.Module, example: tuple[torch.Tensor, ...]) -> int:
    """Count the multiply-adds of a forward in matrix products, convolutions and attention.

    Raises:
        Exception: what the module raises.
    """
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(*example)
    found: int = counter.get_total_flops()
    return found // 2  # a multiplication and an addition are two operations
