"""Kinds of models that users bring, with random weights, which several tests adopt."""

from __future__ import annotations

import torch
from torch import nn


class Graph(nn.Module):
    """Graphs of one size, concatenated: nodes [b, n, 4], edges [b, 2, e] of node numbers."""

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        b, n, f = nodes.shape
        flat = nodes.reshape(b * n, f)
        ends = (edges + n * torch.arange(b)[:, None, None]).transpose(0, 1).reshape(2, -1)
        received = torch.zeros_like(flat).index_add(0, ends[1], flat[ends[0]])
        return (flat + received).view(b, n, f)
