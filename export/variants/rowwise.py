"""Linear layers in int8: weights scaled by output, activations by row at run time."""

from __future__ import annotations

import torch
from torch import nn

# Below, scaling the activations takes longer than it saves; such layers are often a model's last,
# whose errors nothing evens out.
MIN_WEIGHTS = 4096


class RowwiseLinear(nn.Module):
    """Like the layer it is made from; [..., d] -> [..., e], float32.

    Each row of activations, such as a token's, has its own scale: an answer depends neither on what
    else is in the batch nor on padding, and one large number costs only its own row precision.

    Args:
        layer: its weights are copied, as int8.
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
        """The sums are exact: int32."""
        rows = values.reshape(-1, values.size(-1))
        scale = _scale(rows)
        sums = torch._int_mm((rows / scale).round().to(torch.int8), self.weight)
        made = torch.addcmul(self.bias, sums * scale, self.scale)
        return made.view(values.shape[:-1] + self.scale.shape)


def pays(module: nn.Module) -> bool:
    """Whether it is a linear layer, no subclass of one, that is large enough for int8 to pay."""
    return type(module) is nn.Linear and module.weight.numel() >= MIN_WEIGHTS


def rowwise(module: nn.Module) -> nn.Module | None:
    """The layer that replaces one for which int8 pays; None: it does not pay."""
    return RowwiseLinear(module) if isinstance(module, nn.Linear) and pays(module) else None


def _scale(rows: torch.Tensor) -> torch.Tensor:
    """For each row of [n, d] what 1 of its int8 stands for, [n, 1]; of zeros, a tiny number."""
    return rows.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
