"""Conditions of TorchScript that torch's converter to torch.export would drop."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from export.variants.lifting import branches_on_sizes, plain_module
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


class Filled(nn.Module):
    """x [n, 2] -> x, or n where x is negative: from a tensor that is made on the CPU and filled."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.zeros(x.shape[0] + 1, 2, device="cpu", pin_memory=False)
        rows.fill_(x.shape[0])
        return torch.where(x > 0, x, rows[1:].to(x.dtype))


@pytest.mark.filterwarnings("ignore:The TorchScript type system")  # as for any module of torch.fx
def test_a_program_with_sizes_devices_and_mutations_can_be_scripted() -> None:
    example = (torch.tensor([[1.0, -1.0], [-1.0, 2.0], [3.0, -1.0]]),)
    sizes = ({0: torch.export.Dim("n", min=1, max=64)},)
    program = torch.export.export(Filled(), example, dynamic_shapes=sizes)
    scripted = torch.jit.script(plain_module(program))
    torch.testing.assert_close(scripted(*example), Filled()(*example))
    other = (-torch.ones(5, 2),)
    torch.testing.assert_close(scripted(*other), torch.full((5, 2), 5.0))
