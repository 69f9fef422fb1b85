"""Conditions of TorchScript that torch's converter to torch.export would drop."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from export.variants.lifting import branches_on_sizes
from tests.unit.export.torchscripts import inline


@pytest.mark.parametrize(
    ("body", "branches"),
    [
        ("if x.shape[1] % 2 == 1:\n        x = x * 3\n    return x", True),
        ("factor = 2 if len(x) > 4 else 3\n    return x * (factor if factor > 2 else 1)", True),
        ("if len(x.shape) == 3:\n        x = x[0]\n    return x", False),
        ("if bool(x.reshape(x.shape[0], -1).sum() > 0):\n        x = x * 2\n    return x", False),
        ("if x.shape[1] != 3:\n        raise ValueError('three')\n    return x", False),
    ],
    ids=["odd size", "chosen by size", "rank", "value", "check"],
)
def test_sizes_are_told_from_ranks_and_values(body: str, branches: bool) -> None:
    assert branches_on_sizes(inline(body)) is branches


def test_layers_of_torch_only_check_ranks() -> None:
    layers = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten())
    assert not branches_on_sizes(torch.jit.script(layers.eval()))
