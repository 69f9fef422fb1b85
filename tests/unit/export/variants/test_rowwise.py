"""Linear layers in int8, scaled by row."""

from __future__ import annotations

import torch
from torch import nn

from export.variants.layers import replace_layers
from export.variants.rowwise import RowwiseLinear, rowwise


def layer(*, bias: bool = True) -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(64, 96, bias=bias)


def test_rowwise_layer_is_accurate_for_every_shape() -> None:
    for bias in (True, False):
        for shape in ((1, 64), (7, 64), (2, 3, 64)):
            values = torch.randn(shape)
            expected = layer(bias=bias)(values)
            with torch.inference_mode():
                output = RowwiseLinear(layer(bias=bias))(values)
            assert output.shape == expected.shape
            torch.testing.assert_close(output, expected, atol=0.03, rtol=0)


def test_rows_are_independent() -> None:
    row = torch.randn(1, 64)
    with torch.inference_mode():
        small = RowwiseLinear(layer())
        together = small(torch.cat([row, 1e6 * torch.randn(3, 64)]))
        assert torch.equal(together[:1], small(row))


def test_zero_input_gives_the_bias() -> None:
    with torch.inference_mode():
        assert torch.equal(RowwiseLinear(layer())(torch.zeros(2, 64))[0], layer().bias)


def test_nested_large_layers_are_replaced() -> None:
    small = nn.Linear(8, 8)
    whole = nn.Sequential(layer(), nn.Sequential(nn.ReLU(), nn.Linear(96, 96)), small)
    copy = replace_layers(whole, rowwise)
    kinds = [type(each) for each in copy.modules() if not list(each.children())]
    assert kinds == [RowwiseLinear, nn.ReLU, RowwiseLinear, nn.Linear]
    assert isinstance(replace_layers(layer(), rowwise), RowwiseLinear)
