"""Definitions of a few milliseconds, each of which does one thing right or wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._jit_internal import is_scripting

from models.definitions.definition import Definition, HeldOut, Progress
from models.manifest import TensorCodecSpec
from models.tensors import Arrays
from tests.unit.models.manifests import spec


class Scale(nn.Module):
    """x [n, 2] -> weight * x."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


class Liar(nn.Module):
    """Answers otherwise once it is scripted."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if is_scripting():
            return x + 0.001
        return x


class Moody(nn.Module):
    """Fails on batches of more than three, once it is scripted."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if is_scripting() and x.shape[0] > 3:
            raise ValueError("more than three")
        return x * 1


class NotANumber(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / torch.zeros_like(x)


class Unscriptable(nn.Module):
    """Python that TorchScript has no words for; a trace sees only the tensors."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum((x for _ in range(2)), start=x * 0)


def train(module: nn.Module, progress: Progress) -> None:
    """Learns to double."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(2)
    progress(1, 1, "learned")


def random_inputs(rng: np.random.Generator, batch: int) -> Arrays:
    return {"x": rng.uniform(1, 2, (batch, 2)).astype(np.float32)}


def golden_inputs() -> list[Arrays]:
    return [{"x": np.array([3, 4], np.float32)}, {"x": np.array([0, -1], np.float32)}]


def held_out() -> HeldOut:
    """Three of the four are as the identity, or its double, would have it."""
    inputs = np.array([[1, 0], [0, 1], [1, 0], [1, 0]], np.float32)
    return HeldOut({"x": inputs}, np.array([0, 1, 0, 1]))


def definition(module: Callable[[], nn.Module] = Scale, **changes: Any) -> Definition:
    fields: dict[str, Any] = {
        "description": "A 100 % tiny model.",
        "inputs": (spec("x", shape=(-1, 2)),),
        "outputs": (spec("y", shape=(-1, 2)),),
        "codec": TensorCodecSpec(),
        "build": module,
        "train": train,
        "random_inputs": random_inputs,
        "golden_inputs": golden_inputs,
        "example": lambda: [3.0, 4.0],
        "held_out": held_out,
    }
    return Definition(**(fields | changes))


CATALOG = {
    "tiny": definition(),
    "liar": definition(Liar),
    "moody": definition(Moody),
    "nan": definition(NotANumber),
    "unscriptable": definition(Unscriptable),
}
