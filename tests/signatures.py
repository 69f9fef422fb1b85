"""Models with the signatures that people bring: what `adopt` is given, as small as can be."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn


class Several(nn.Module):
    """x [n, 3] -> logits [n, 2], features [n, 3]."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.stack([x.sum(dim=1), -x.sum(dim=1)], dim=1), x * 2


class Pairs(nn.Module):
    """ids, types int64 [n, t] -> [n, t, 2]."""

    def forward(self, ids: Tensor, types: Tensor) -> Tensor:
        return torch.stack([ids, types], dim=-1).to(torch.float32)


class Padded(nn.Module):
    """A detector: picture [n, 3, 8, 8] -> boxes [n, 4, 4], scores [n, 4], labels, count [n]."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        n = x.shape[0]
        scores = x.mean(dim=(1, 2, 3)).unsqueeze(1).expand(n, 4)
        boxes = torch.arange(16, dtype=torch.float32).reshape(1, 4, 4).expand(n, 4, 4)
        labels = torch.zeros(n, 4, dtype=torch.int64)
        return boxes.contiguous(), scores.contiguous(), labels, (scores > 0).sum(dim=1)


class Optional(nn.Module):
    """x [n, 3] and, where it is given, scale [n, 1] -> [n, 3]."""

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        return x if scale is None else x * scale


class Mapped(nn.Module):
    """x [n, 3] -> {"out": [n, 2], "aux": [n]}."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"aux": x.sum(dim=1), "out": x[:, :2] * 3}


class Found(NamedTuple):
    """What a detector of one thing finds."""

    score: Tensor
    box: Tensor


class Named(nn.Module):
    """x [n, 3] -> a NamedTuple of score [n] and box [n, 4]."""

    def forward(self, x: Tensor) -> Found:
        return Found(x.sum(dim=1), torch.cat([x, x[:, :1]], dim=1))


class Detector(nn.Module):
    """As torchvision's detectors: a list with one dict of boxes and scores for each picture."""

    def forward(self, x: Tensor) -> list[dict[str, Tensor]]:
        made: list[dict[str, Tensor]] = []
        for one in x:
            made.append({"boxes": one.reshape(1, -1)[:, :4], "scores": one.reshape(-1)[:1]})
        return made


class Reads(nn.Module):
    """text -> [1, 1]."""

    def forward(self, text: str) -> Tensor:
        return torch.full((1, 1), float(len(text)))


class Says(nn.Module):
    """x [n, 3] -> text."""

    def forward(self, x: Tensor) -> str:
        return "yes" if bool(x.sum() > 0) else "no"


class Spectrum(nn.Module):
    """x [n, 8] -> complex64 [n, 5]."""

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = torch.fft.rfft(x)
        return made


class Nonzero(nn.Module):
    """x [n, 3] -> the places of what is above 0 [k, 2]: as many as there are."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.nonzero(x > 0)


class FixedBatch(nn.Module):
    """x [4, 3] -> [4, 3]: the batch size is written into it."""

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(3, 4).reshape(4, 3) * 2


class BatchMates(nn.Module):
    """x [n, 3] -> [n, 3]: less the mean of the whole batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=0)
