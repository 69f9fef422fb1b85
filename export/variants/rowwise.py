"""Linear layers in int8: weights scaled by output, activations by row at run time."""

from __future__ import annotations

import torch
from torch import nn

# For smaller layers, scaling the activations costs more than it saves; they are often a model's
# last layers, whose errors no later layer evens out.
MIN_WEIGHTS = 4096


class RowwiseLinear(nn.Module):
    """Replaces a linear layer; [..., d] -> [..., e], float32.

    Each row of activations, such as a token's, has its own scale: an answer depends neither on the
    rest of the batch nor on padding, and one large number reduces only its own row's precision.

    Args:
        layer: the replaced one; its weights are copied as int8.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        weight = layer.weight.detach()  # [e, d]
        scale = _scale(weight)
        bias = torch.zeros(len(weight)) if layer.bias is None else layer.bias.detach()
        self.weight = nn.Buffer((weight / scale).round().to(torch.int8).t())
        self.scale = nn.Buffer(scale[:, 0])
        self.bias = nn.Buffer(bias.clone())

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Compute the layer; sums are exact, in int32."""
        rows = values.reshape(-1, values.size(-1))
        scale = _scale(rows)
        sums = torch._int_mm((rows / scale).round().to(torch.int8), self.weight)
        output = torch.addcmul(self.bias, sums * scale, self.scale)
        return output.view(values.shape[:-1] + self.scale.shape)


def pays(module: nn.Module) -> bool:
    """Whether it is a linear layer, not a subclass, and large enough to gain from int8."""
    return type(module) is nn.Linear and module.weight.numel() >= MIN_WEIGHTS


def rowwise(module: nn.Module) -> nn.Module | None:
    """Return the replacement of a layer that gains from int8; None: it does not."""
    return RowwiseLinear(module) if isinstance(module, nn.Linear) and pays(module) else None


def _scale(rows: torch.Tensor) -> torch.Tensor:
    """Return the value of 1 in int8 for each row of [n, d], [n, 1]; a tiny number for zeros."""
    return rows.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
