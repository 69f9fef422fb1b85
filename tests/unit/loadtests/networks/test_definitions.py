"""The networks have the sizes of those that they stand for."""

from __future__ import annotations

import pytest
import torch

from loadtests.networks.definitions import NETWORKS
from loadtests.networks.sizes import BERT, MOBILENET


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "weights"),
    [
        (MOBILENET, (torch.zeros(2, 3, 224, 224),), 1000, 5_483_032),
        (BERT, (torch.ones(2, 5, dtype=torch.int64),) * 2, 8, 22_567_688),
    ],
)
def test_networks_are_of_full_size(
    name: str, inputs: tuple[torch.Tensor, ...], outputs: int, weights: int
) -> None:
    module = NETWORKS[name]().eval()
    with torch.inference_mode():
        assert module(*inputs).shape == (2, outputs)
    assert sum(each.numel() for each in module.parameters()) == weights
