"""Heads of text models: the layers after the token vectors, as part of the graph.

Padded places never count.
"""

from __future__ import annotations

from typing import get_args

import torch
from torch import nn
from torch.nn import functional

from models.choices import Pooling


class TokenPool(nn.Module):
    """Token vectors [n, s, d] and their mask [n, s] -> one vector per item [n, d].

    Args:
        how: `mean` of the tokens; `cls`, the first token; `last`, the last one that is not
            padding. Padding is on the right.
    """

    def __init__(self, how: Pooling) -> None:
        super().__init__()
        if how not in get_args(Pooling):
            raise ValueError(f"pooling must be {', '.join(get_args(Pooling))}, got {how!r}")
        self.how = how

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Compute in the precision of the tokens, with sums in float32."""
        if self.how == "cls":
            return tokens[:, 0]
        if self.how == "last":
            last = (mask.sum(1) - 1).clamp(min=0)  # [n]
            index = last.view(-1, 1, 1).expand(-1, 1, tokens.size(2))
            return tokens.gather(1, index).squeeze(1)
        weights = mask.unsqueeze(2).float()  # [n, s, 1]
        mean = (tokens.float() * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        return mean.to(tokens.dtype)


class Dense(nn.Module):
    """A linear layer and an activation; [n, d] -> [n, e]."""

    def __init__(self, linear: nn.Linear, activation: nn.Module) -> None:
        super().__init__()
        self.linear = linear
        self.activation = activation

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Compute in the precision of the weights."""
        result: torch.Tensor = self.activation(self.linear(vectors))
        return result


class Normalize(nn.Module):
    """Scale each vector of [n, d] to length 1; zeros stay zeros."""

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Compute in float32."""
        return functional.normalize(vectors.float(), dim=1)
