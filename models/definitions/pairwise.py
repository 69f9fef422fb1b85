"""Squared distances between two point sets: two inputs, free dimensions, nothing to learn."""

from __future__ import annotations

import numpy as np
import torch
from pydantic import JsonValue
from torch import nn

from models.codec_specs import TensorCodecSpec
from models.definitions.definition import Definition
from models.tensors import Arrays, Dimension, TensorSpec

P, Q = Dimension(name="p", most=256), Dimension(name="q", most=256)


class Pairwise(nn.Module):
    """a [n, p, 2], b [n, q, 2] -> squared distances [n, p, q]."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Compute differences, then squares: exact even if points nearly coincide."""
        difference = a.unsqueeze(2) - b.unsqueeze(1)  # [n, p, q, 2]
        return (difference * difference).sum(dim=3)


def _random_inputs(rng: np.random.Generator, batch: int) -> Arrays:
    p, q = (int(size) for size in rng.integers(1, 9, size=2))
    return {
        "a": rng.standard_normal((batch, p, 2), dtype=np.float32),
        "b": rng.standard_normal((batch, q, 2), dtype=np.float32),
    }


def _golden_inputs() -> list[Arrays]:
    rng = np.random.default_rng(7)
    shapes = [(1, 1), (2, 3), (5, 4)]
    return [
        {
            "a": rng.standard_normal((p, 2), dtype=np.float32),
            "b": rng.standard_normal((q, 2), dtype=np.float32),
        }
        for p, q in shapes
    ]


def _example() -> JsonValue:
    return {"a": [[0.0, 0.0], [1.0, 1.0]], "b": [[3.0, 4.0]]}


DEFINITION = Definition(
    description="Squared pairwise distances of two sets of points in the plane.",
    inputs=(
        TensorSpec(name="a", dtype="float32", shape=(-1, -1, 2), dimensions=(P,)),
        TensorSpec(name="b", dtype="float32", shape=(-1, -1, 2), dimensions=(Q,)),
    ),
    outputs=(TensorSpec(name="distances", dtype="float32", shape=(-1, -1, -1)),),
    codec=TensorCodecSpec(),
    build=lambda: Pairwise().eval(),
    train=None,
    random_inputs=_random_inputs,
    golden_inputs=_golden_inputs,
    example=_example,
)
