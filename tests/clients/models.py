"""Small models for clients: one of each kind."""

from __future__ import annotations

import io
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from PIL import Image
from torch import nn

from models.codec_specs import TensorCodecSpec
from models.definitions import digits
from models.tensors import Dtype, TensorSpec
from tests.artifacts import write_artifact, write_small
from tests.handlers import asks, write_handler
from tests.kinds import SIDE, Same, write_pictures


class Parts(nn.Module):
    """x [n, 2] -> whole int64 [n, 2], rest float32 [n, 2], negative bool [n, 2]."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See the class."""
        whole = torch.trunc(x)
        return whole.to(torch.int64), x - whole, x < 0


# Texts [n, 2] -> both in one.
JOINED = """
import torchlane

class Joined(torchlane.Handler):
    inputs = {"text": "bytes[-1,2]"}
    outputs = {"joined": "bytes[-1]"}

    def predict(self, request):
        return {"joined": [one + other for one, other in request.tensors["text"]]}
"""


def write_all(folder: Path) -> None:
    """Write `pictures`, `double` (twice), `labelled`, `parts`, `small`, and one for each dtype.

    And the handler `joined`.
    """
    write_pictures(folder)
    write_artifact(folder, "double", 1)
    write_artifact(folder, "double", 2)
    write_artifact(
        folder, "labelled", codec=TensorCodecSpec(labels=("dark", "light"), scores="softmax")
    )
    for dtype in get_args(Dtype):
        same = TensorSpec(name="x", dtype=dtype, shape=(-1, 2))
        ones = {"x": np.ones(2, dtype)}
        write_artifact(*(folder, dtype, 1, Same()), inputs=(same,), outputs=(same,), golden=[ones])
    parts: tuple[tuple[str, Dtype], ...] = (
        ("whole", "int64"),
        ("rest", "float32"),
        ("negative", "bool"),
    )
    outputs = tuple(TensorSpec(name=name, dtype=dtype, shape=(-1, 2)) for name, dtype in parts)
    write_artifact(folder, "parts", 1, Parts(), outputs=outputs)
    write_small(folder, ["script"], free=True)
    write_handler(
        *(folder, "joined", 1, JOINED, [asks({"text": [["a", "b"]]}, {"joined": ["ab"]})]),
        entry="joined:Joined",
        inputs={"text": "bytes[-1,2]"},
        outputs={"joined": "bytes[-1]"},
    )


def write_digits(folder: Path, weights: Path) -> None:
    """Write `digits` with these weights, as plain TorchScript."""
    eager, made = digits.Digits(), digits.DEFINITION
    eager.load_state_dict(torch.load(weights, weights_only=True))
    write_artifact(
        *(folder, "digits", 1, eager),
        inputs=made.inputs,
        outputs=made.outputs,
        codec=made.codec,
        golden=made.golden_inputs(),
    )


def write_files(folder: Path) -> None:
    """Write a black PNG and a white JPEG."""
    folder.mkdir()
    for name, kind, value in (("dark.png", "PNG", 0), ("light.jpg", "JPEG", 255)):
        file = io.BytesIO()
        Image.new("L", (SIDE, SIDE), value).save(file, kind)
        (folder / name).write_bytes(file.getvalue())
