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


class Pooled(nn.Module):
    """x [b, t, w], mask [b, t] -> [b, w, 2]: the masked mean over t, at any width w."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(2))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        weights = mask.to(x.dtype).unsqueeze(2)
        mean = (x * weights).sum(1) / weights.sum(1)
        return mean.unsqueeze(2) * self.scale


class PaddedGraph(nn.Module):
    """A graph whose items have different numbers of nodes, padded: mask [b, n]."""

    def __init__(self) -> None:
        super().__init__()
        self.graph = Graph()

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.graph(nodes, edges)
        return output * mask.to(nodes.dtype).unsqueeze(2)


class HalfModel(nn.Module):
    """x [b, 3, 8, 8] -> y [b, 8], in a dtype of its own; optimizations fold its batch norms."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        norms = [nn.BatchNorm2d(8) for _ in range(2)]
        for each in norms:
            nn.init.normal_(each.weight)
            nn.init.normal_(each.bias)
        layers = [nn.Conv2d(3, 8, 3), norms[0], nn.ReLU(), nn.Conv2d(8, 8, 3), norms[1]]
        self.layers = nn.Sequential(*layers).to(dtype)
        self.dtype = dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.layers(x.to(self.dtype)).float()
        return output.mean((2, 3))


class Counter(nn.Module):
    """Adds the number of forwards so far: a state."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.as_tensor(self.seen).add_(1)


class Learning(nn.Module):
    """Adds a parameter that each forward moves to the mean of its inputs: a state."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(1), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + self.mean
        self.mean.lerp_(x.mean(), 0.1)
        return y


class Remembering(nn.Module):
    """Adds the mean of all inputs so far, which it assigns to an attribute: a state."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.forwards = torch.zeros(1), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.forwards += 1
        self.mean = self.mean + (x.mean() - self.mean) / self.forwards
        return x + self.mean


class Found(nn.Module):
    """As many numbers as the most positive ones of an item: a size that depends on the data."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        most = int((x > 0).sum(1).max())
        return x.sort(1, descending=True)[0][:, :most]
