"""Conditions of TorchScript that torch's converter to torch.export would drop."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from export.variants.lifting import branches_on_sizes


class Odd(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] % 2 == 1:
            x = x * 3
        return x


class Chosen(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        factor = 2 if len(x) > 4 else 3
        return x * (factor if factor > 2 else 1)


class Rank(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x.shape) == 3:
            x = x[0]
        return x


class Value(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.reshape(x.shape[0], -1).sum() > 0):
            x = x * 2
        return x


class Checked(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] != 3:
            raise ValueError("three are needed")
        return x


@pytest.mark.parametrize(
    ("module", "branches"),
    [(Odd, True), (Chosen, True), (Rank, False), (Value, False), (Checked, False)],
)
def test_sizes_are_told_from_ranks_and_values(
    module: Callable[[], nn.Module], branches: bool
) -> None:
    assert branches_on_sizes(torch.jit.script(module().eval())) is branches


def test_layers_of_torch_only_check_ranks() -> None:
    layers = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten())
    assert not branches_on_sizes(torch.jit.script(layers.eval()))
