"""A residual network of 50 layers for pictures of 224x224; its weights are random.

The architecture of K. He, X. Zhang, S. Ren, J. Sun, Deep Residual Learning for Image Recognition
(2015), with the stride in the 3x3 convolution of a block. Its answers are meaningless: its size is
for measuring devices. `torchlane export residual --checkpoint FILE` loads meaningful weights, with
the names of torchvision's `resnet50`, which has the same parts. `torchlane train residual`
trains it on small handwritten digits, to try training strategies.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from pydantic import JsonValue
from torch import nn
from torch.nn import functional

from models.codec_specs import ImageCodecSpec, PicturePreprocess
from models.definitions import digits
from models.definitions.definition import Definition
from models.definitions.training import Rows, Training, share_right
from models.inputs.preprocess import preprocess
from models.tensors import Arrays, TensorSpec

SEED = 50
SIDE = 224
CLASSES = 1000
BLOCKS = (3, 4, 6, 3)
WIDTHS = (64, 128, 256, 512)
EXPANSION = 4
# Scale of a block's last normalisation: with 1 the variance would double in each of 16 blocks,
# because there are no statistics of data yet.
BRANCH_SCALE = 0.25
PREPROCESS = PicturePreprocess(
    width=SIDE,
    height=SIDE,
    channels=3,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
)


class Bottleneck(nn.Module):
    """1x1 to `width`, 3x3, 1x1 to four times `width`, and the input added to it."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = EXPANSION * width
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        branch = self.relu(self.bn1(self.conv1(x)))
        branch = self.relu(self.bn2(self.conv2(branch)))
        branch = self.bn3(self.conv3(branch))
        result: torch.Tensor = self.relu(branch + self.downsample(x))
        return result


class Residual(nn.Module):
    """[n, 3, 224, 224] -> logits [n, 1000]; 25,557,032 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1, self.layer2, self.layer3, self.layer4 = (
            _layer(channels, width, blocks, stride)
            for channels, width, blocks, stride in zip(
                (64, 256, 512, 1024), WIDTHS, BLOCKS, (1, 2, 2, 2), strict=True
            )
        )
        self.fc = nn.Linear(EXPANSION * WIDTHS[-1], CLASSES)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(image))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: torch.Tensor = self.fc(x.mean(dim=(2, 3)))
        return logits


def _layer(channels: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    first = Bottleneck(channels, width, stride)
    rest = (Bottleneck(EXPANSION * width, width, 1) for _ in range(blocks - 1))
    return nn.Sequential(first, *rest)


def _build() -> nn.Module:
    """Build with the same weights each time, without affecting other random numbers."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(SEED)
        module = Residual().eval()
        for layer in module.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(layer, Bottleneck):
                nn.init.constant_(layer.bn3.weight, BRANCH_SCALE)
    return module


def _picture(seed: int) -> Image.Image:
    """Draw a few random rectangles: a picture with edges and flat areas, a few hundred bytes."""
    rng = np.random.default_rng(seed)
    pixels = np.full((SIDE, SIDE, 3), rng.integers(0, 256, 3), np.uint8)
    for _ in range(6):
        top, left = rng.integers(0, SIDE - 32, 2)
        height, width = rng.integers(16, 128, 2)
        pixels[top : top + height, left : left + width] = rng.integers(0, 256, 3)
    return Image.fromarray(pixels)


def _random_inputs(rng: np.random.Generator, batch: int) -> Arrays:
    mean, std = (np.asarray(each, np.float32) for each in (PREPROCESS.mean, PREPROCESS.std))
    noise = rng.random((batch, SIDE, SIDE, 3), dtype=np.float32)
    return {"image": np.ascontiguousarray(((noise - mean) / std).transpose(0, 3, 1, 2))}


def _golden_inputs() -> list[Arrays]:
    return [{"image": preprocess(_picture(seed), PREPROCESS)} for seed in (1, 2)]


def _example() -> JsonValue:
    buffer = io.BytesIO()
    _picture(1).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def _digits(train: bool) -> Rows:
    """Return the pictures of `digits`: 32x32 pixels, in three equal channels."""
    images, labels = digits.rows(digits.split()[0 if train else 1]).tensors
    return Rows(images.expand(-1, 3, -1, -1), labels)


def _stages(module: nn.Module) -> Sequence[nn.Module]:
    """Split into two parts of about equal work: up to the second group of blocks, and the rest."""
    if not isinstance(module, Residual):
        raise TypeError(f"bug: not the residual network but {type(module).__name__}")
    stem = (module.conv1, module.bn1, module.relu, module.maxpool)
    mean = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return (
        nn.Sequential(*stem, module.layer1, module.layer2),
        nn.Sequential(module.layer3, module.layer4, *mean, module.fc),
    )


TRAINING = Training(
    source=digits.TRAINING.source,
    data=lambda: _digits(train=True),
    loss=functional.cross_entropy,
    optimizer=lambda parameters: torch.optim.SGD(
        parameters, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4
    ),
    epochs=6,
    batch=64,
    seed=SEED,
    schedule=lambda optimizer, steps: torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.05, total_steps=steps
    ),
    evaluation=lambda: _digits(train=False),
    metrics={"accuracy": share_right},
    stages=_stages,
    as_built=True,
)


DEFINITION = Definition(
    description="A residual network of 50 layers with random weights, to measure devices with.",
    inputs=(TensorSpec(name="image", dtype="float32", shape=(-1, 3, SIDE, SIDE)),),
    outputs=(TensorSpec(name="scores", dtype="float32", shape=(-1, CLASSES)),),
    codec=ImageCodecSpec(preprocess=PREPROCESS, scores="softmax"),
    build=_build,
    train=None,
    random_inputs=_random_inputs,
    golden_inputs=_golden_inputs,
    example=_example,
    training=TRAINING,
)
