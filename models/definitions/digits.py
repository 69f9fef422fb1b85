"""Handwritten digits: a small network, and the 1,797 pictures in scikit-learn.

The pictures are 8x8 with 17 grey levels (E. Alpaydin and C. Kaynak, Optical Recognition of
Handwritten Digits, UCI Machine Learning Repository, 1998), scaled to 32x32 here.
"""

from __future__ import annotations

import base64
import functools
import io
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from pydantic import JsonValue
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional

from models.codec_specs import ImageCodecSpec, PicturePreprocess
from models.definitions.definition import Definition, HeldOut
from models.definitions.training import Rows, Tensors, Training, share_right
from models.inputs.preprocess import preprocess
from models.tensors import Arrays, TensorSpec

SEED = 20
PREPROCESS = PicturePreprocess(
    width=32, height=32, channels=1, mean=(0.3,), std=(0.35,), polarity="auto"
)


class Digits(nn.Module):
    """conv 1->6, pool, conv 6->16, pool, linear 576->120->84->10; [n,1,32,32] -> [n,10]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, kernel_size=3)
        self.conv2 = nn.Conv2d(6, 16, kernel_size=3)
        self.fc1 = nn.Linear(576, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Return logits, not probabilities: by the manifest, scores are their softmax."""
        x = functional.max_pool2d(torch.relu(self.conv1(image)), 2)  # [n, 6, 15, 15]
        x = functional.max_pool2d(torch.relu(self.conv2(x)), 2)  # [n, 16, 6, 6]
        x = torch.relu(self.fc1(x.flatten(1)))
        x = torch.relu(self.fc2(x))
        logits: torch.Tensor = self.fc3(x)
        return logits


@functools.cache
def pictures() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return all pictures as uint8 [n, 8, 8], light on dark, and their labels [n]."""
    data = load_digits()
    levels = np.asarray(data.images, dtype=np.float64)  # 0 .. 16
    return np.round(levels * (255 / 16)).astype(np.uint8), np.asarray(data.target, dtype=np.int64)


@functools.cache
def split() -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return the indices of the training pictures and the held-out fifth, stratified by label."""
    labels = pictures()[1]
    train, held_out = train_test_split(
        np.arange(len(labels)), test_size=0.2, random_state=SEED, stratify=labels
    )
    return np.asarray(train, dtype=np.intp), np.asarray(held_out, dtype=np.intp)


def png(picture: npt.NDArray[np.uint8]) -> bytes:
    """Encode a greyscale picture [h, w] as a PNG file."""
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "PNG")
    return buffer.getvalue()


def _arrays(indices: npt.NDArray[np.intp]) -> npt.NDArray[np.float32]:
    images = pictures()[0]
    return np.stack([preprocess(Image.fromarray(images[index]), PREPROCESS) for index in indices])


def _augment(inputs: Tensors, draws: torch.Tensor) -> Tensors:
    """Shift, rotate and scale slightly: a digit need not fill its picture exactly."""
    (batch,) = inputs
    draw = draws.T  # [5, n]
    angle = (draw[0] - 0.5) * 0.4  # +- 0.2 rad, about 11 degrees
    size = 0.9 + draw[1] * 0.7  # sampling grid 0.9 .. 1.6: digits appear 111 % .. 62 % as large
    cos, sin = torch.cos(angle) * size, torch.sin(angle) * size
    shift = (draw[2:4] - 0.5) * 0.3
    theta = torch.stack(
        [torch.stack([cos, -sin, shift[0]], 1), torch.stack([sin, cos, shift[1]], 1)], 1
    )
    grid = functional.affine_grid(theta, list(batch.shape), align_corners=False)
    floor = batch.amin()  # the background, which padding must match
    warped = functional.grid_sample(batch - floor, grid, align_corners=False) + floor
    as_it_is = (draw[4] < 0.3).view(-1, 1, 1, 1)
    return (torch.where(as_it_is, batch, warped),)


def rows(indices: npt.NDArray[np.intp]) -> Rows:
    """Return some of the pictures and their labels, in the model's format."""
    return Rows(torch.from_numpy(_arrays(indices)), torch.from_numpy(pictures()[1][indices]))


def _stages(module: nn.Module) -> Sequence[nn.Module]:
    """Split into convolutions and linear layers: a quarter and three quarters of the work."""
    if not isinstance(module, Digits):
        raise TypeError(f"bug: not the network of digits but {type(module).__name__}")
    pool, relu = nn.MaxPool2d(2), nn.ReLU()
    return (
        nn.Sequential(module.conv1, relu, pool, module.conv2, relu, pool, nn.Flatten()),
        nn.Sequential(module.fc1, relu, module.fc2, relu, module.fc3),
    )


TRAINING = Training(
    source="1,437 of the 1,797 pictures of scikit-learn's load_digits",
    data=lambda: rows(split()[0]),
    loss=functional.cross_entropy,
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=3e-3),
    epochs=24,
    batch=64,
    seed=SEED,
    schedule=torch.optim.lr_scheduler.CosineAnnealingLR,
    evaluation=lambda: rows(split()[1]),
    metrics={"accuracy": share_right},
    augment=_augment,
    draws=5,
    stages=_stages,
)


def _random_inputs(rng: np.random.Generator, batch: int) -> Arrays:
    noise = rng.integers(0, 256, size=(batch, 1, 32, 32)).astype(np.float32) / 255
    return {"image": (noise - PREPROCESS.mean[0]) / np.float32(PREPROCESS.std[0])}


def _golden_indices() -> list[int]:
    labels = pictures()[1]
    return [int(next(i for i in split()[1] if labels[i] == digit)) for digit in range(10)]


def _golden_inputs() -> list[Arrays]:
    return [{"image": array} for array in _arrays(np.asarray(_golden_indices()))]


def _example() -> JsonValue:
    picture = pictures()[0][_golden_indices()[7]]
    return base64.b64encode(png(picture)).decode("ascii")


def _held_out() -> HeldOut:
    indices = split()[1]
    return HeldOut({"image": _arrays(indices)}, pictures()[1][indices])


def _calibration() -> list[Arrays]:
    """Return 512 pictures of the training set, in batches of 64."""
    indices = split()[0][:512]
    return [{"image": _arrays(indices[start : start + 64])} for start in range(0, 512, 64)]


DEFINITION = Definition(
    description="A handwritten digit, 0 to 9, from a picture of it.",
    inputs=(TensorSpec(name="image", dtype="float32", shape=(-1, 1, 32, 32)),),
    outputs=(TensorSpec(name="scores", dtype="float32", shape=(-1, 10)),),
    codec=ImageCodecSpec(
        preprocess=PREPROCESS, labels=tuple(str(digit) for digit in range(10)), scores="softmax"
    ),
    build=lambda: Digits().eval(),
    train=TRAINING.fit,
    random_inputs=_random_inputs,
    golden_inputs=_golden_inputs,
    example=_example,
    held_out=_held_out,
    calibration=_calibration,
    training=TRAINING,
)
