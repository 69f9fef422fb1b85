"""The networks, in plain torch with random weights: speed does not depend on the values.

`python -m loadtests.networks.definitions NAME FOLDER` writes one as a program of torch.export, and
as an ONNX file.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from loadtests.networks.sizes import BERT, CLASSES, LONGEST, MOBILENET, RESNET, SIDE, WORDS
from models.definitions.residual import Residual


class _Stage(NamedTuple):
    """One row of table 1 of https://arxiv.org/abs/1905.02244."""

    kernel: int
    expanded: int
    out: int
    excites: bool
    hard: bool
    stride: int


STAGES = (
    _Stage(3, 16, 16, excites=False, hard=False, stride=1),
    _Stage(3, 64, 24, excites=False, hard=False, stride=2),
    _Stage(3, 72, 24, excites=False, hard=False, stride=1),
    _Stage(5, 72, 40, excites=True, hard=False, stride=2),
    _Stage(5, 120, 40, excites=True, hard=False, stride=1),
    _Stage(5, 120, 40, excites=True, hard=False, stride=1),
    _Stage(3, 240, 80, excites=False, hard=True, stride=2),
    _Stage(3, 200, 80, excites=False, hard=True, stride=1),
    _Stage(3, 184, 80, excites=False, hard=True, stride=1),
    _Stage(3, 184, 80, excites=False, hard=True, stride=1),
    _Stage(3, 480, 112, excites=True, hard=True, stride=1),
    _Stage(3, 672, 112, excites=True, hard=True, stride=1),
    _Stage(5, 672, 160, excites=True, hard=True, stride=2),
    _Stage(5, 960, 160, excites=True, hard=True, stride=1),
    _Stage(5, 960, 160, excites=True, hard=True, stride=1),
)


def _convolution(
    inside: int, out: int, kernel: int = 1, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    padding = kernel // 2
    convolution = nn.Conv2d(inside, out, kernel, stride, padding, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out))


class _Excitation(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        narrow = (width // 4 + 4) // 8 * 8  # a multiple of 8, and not much less than a quarter
        narrow += 8 * (narrow < 0.9 * (width // 4))
        self.squeeze, self.excite = nn.Conv2d(width, narrow, 1), nn.Conv2d(narrow, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = F.adaptive_avg_pool2d(x, 1)
        return x * F.hardsigmoid(self.excite(torch.relu(self.squeeze(mean))))


class _Bottleneck(nn.Module):
    def __init__(self, inside: int, stage: _Stage) -> None:
        super().__init__()
        active = nn.Hardswish if stage.hard else nn.ReLU
        wide = stage.expanded
        layers: list[nn.Module] = []
        if wide != inside:
            layers += [_convolution(inside, wide), active()]
        layers += [_convolution(wide, wide, stage.kernel, stage.stride, groups=wide), active()]
        layers += [_Excitation(wide)] if stage.excites else []
        self.layers = nn.Sequential(*layers, _convolution(wide, stage.out))
        self.skips = stage.stride == 1 and inside == stage.out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return x + out if self.skips else out


class MobileNet(nn.Module):
    """MobileNetV3-large: float32 [n, 3, 224, 224] -> [n, 1000]; 5.5 M weights."""

    def __init__(self) -> None:
        super().__init__()
        widths = [16, *(stage.out for stage in STAGES)]
        blocks = map(_Bottleneck, widths, STAGES)
        first, last = _convolution(3, 16, 3, 2), _convolution(160, 960)
        self.features = nn.Sequential(first, nn.Hardswish(), *blocks, last, nn.Hardswish())
        self.head = nn.Sequential(nn.Linear(960, 1280), nn.Hardswish(), nn.Linear(1280, CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.features(x).mean((2, 3)))
        return scores


class _Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        n, tokens, width = x.shape
        heads = self.qkv(x).view(n, tokens, 3, self.heads, width // self.heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        attention = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.first(x + self.out(attention.transpose(1, 2).reshape(n, tokens, width)))
        out: torch.Tensor = self.second(x + self.narrow(F.gelu(self.wide(x))))
        return out


class Bert(nn.Module):
    """Token ids and their mask, int64 [n, t] -> float32 [n, 8]; six layers of 384."""

    def __init__(self, layers: int = 6, width: int = 384, heads: int = 12) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(LONGEST, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(_Layer(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, 8)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        x, attends = self.norm(self.words(ids) + self.places(places)), (mask != 0)[:, None, None, :]
        for layer in self.layers:
            x = layer(x, attends)
        scores: torch.Tensor = self.head(x[:, 0])
        return scores


NETWORKS: Mapping[str, Callable[[], nn.Module]] = {
    MOBILENET: MobileNet,
    RESNET: Residual,
    BERT: Bert,
}


def write(name: str, folder: Path) -> None:
    """Write `NAME.pt2` and `NAME.onnx`, with a free batch, and free lengths of texts."""
    torch.manual_seed(1)
    batch = torch.export.Dim("batch", min=1, max=65_536)
    axes: tuple[dict[int, Any], ...] = ({0: batch},)
    example: tuple[torch.Tensor, ...] = (torch.zeros(3, 3, SIDE, SIDE),)
    module = NETWORKS[name]().eval()
    if name == BERT:
        axes = 2 * ({0: batch, 1: torch.export.Dim("tokens", min=1, max=LONGEST)},)
        # Two tensors: torch.export takes one that is given twice for a single input.
        example = tuple(torch.ones(3, 8, dtype=torch.int64) for _ in axes)
    program = torch.export.export(module, example, dynamic_shapes=axes)
    torch.export.save(program, folder / f"{name}.pt2")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        onnx_program: Any = torch.onnx.export(program, verbose=False)
    onnx_program.save(folder / f"{name}.onnx")


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]))
