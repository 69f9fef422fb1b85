"""Models that double their input, in all the forms that an answer of numbers may have."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from models.codec_specs import TensorCodecSpec
from tests.artifacts import Y, write_artifact
from tests.kinds import write_ages


class TwoOutputs(nn.Module):
    """x -> y = 2 x, z = x + 1."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See the class."""
        return x * 2, x + 1


def write_double_models(folder: Path) -> None:
    """Write double/3, `labelled`, `two` with two outputs, and `ages` with missing values."""
    write_artifact(folder, "double", version=3)
    write_artifact(folder, "labelled", codec=TensorCodecSpec(labels=("a", "b"), scores="softmax"))
    second = Y.model_copy(update={"name": "z"})
    write_artifact(folder, "two", module=TwoOutputs(), outputs=(Y, second))
    write_ages(folder)
