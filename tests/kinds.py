"""Small models of more kinds than those of `tests/artifacts.py`: of pictures, and of any dtype."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

from models.categories import Categories
from models.codec_specs import ImageCodecSpec, PicturePreprocess, TensorCodecSpec
from models.tensors import Dtype, TensorSpec
from tests.artifacts import Y, write_artifact

SIDE = 2  # pixels of a picture
AGES = tuple(
    TensorSpec(name=name, dtype="float32", shape=(-1,), nan=True) for name in ("age", "rooms")
)
DTYPES: tuple[Dtype, ...] = ("bool", "int8", "int64", "uint8", "float16", "float64")


class Brightness(nn.Module):
    """picture [n, 1, 2, 2] -> scores [n, 2] of dark and light."""

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        """See the class."""
        light = picture.mean(dim=(1, 2, 3))
        return torch.stack([1 - light, light], dim=1)


class Same(nn.Module):
    """x -> the same."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        return x.clone()


def write_pictures(folder: Path) -> None:
    """Write the model `pictures`, of pictures in grey, with labels."""
    how = PicturePreprocess(width=SIDE, height=SIDE, channels=1, mean=(0,), std=(1,))
    write_artifact(
        *(folder, "pictures", 1, Brightness()),
        inputs=(TensorSpec(name="picture", dtype="float32", shape=(-1, 1, SIDE, SIDE)),),
        outputs=(TensorSpec(name="scores", dtype="float32", shape=(-1, 2)),),
        codec=ImageCodecSpec(labels=("dark", "light"), preprocess=how),
        golden=[{"picture": np.zeros((1, SIDE, SIDE), np.float32)}],
    )


def write_dtypes(folder: Path) -> None:
    """Write a model for each of DTYPES, named like it: x [n, 3] -> y, the same."""
    for dtype in DTYPES:
        spec = TensorSpec(name="x", dtype=dtype, shape=(-1, 3))
        write_artifact(
            *(folder, dtype, 1, Same()),
            inputs=(spec,),
            outputs=(spec.model_copy(update={"name": "y"}),),
            golden=[{"x": np.array([0, 1, 1], dtype)}],
        )


class Ages(nn.Module):
    """age [n], rooms [n] -> y [n, 2]: each, or -1 if it is missing."""

    def forward(self, age: torch.Tensor, rooms: torch.Tensor) -> torch.Tensor:
        """See the class."""
        x = torch.stack([age, rooms], 1)
        return torch.where(torch.isnan(x), torch.full_like(x, -1.0), x)


class Gaps(nn.Module):
    """x [n, 2] -> y: the same, -1 for NaN."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        return x.nan_to_num(-1.0)


def write_ages(folder: Path) -> None:
    """Write the models `ages` and `gaps`, whose two numbers may be missing."""
    gaps = (TensorSpec(name="x", dtype="float32", shape=(-1, 2), nan=True),)
    write_artifact(folder, "gaps", module=Gaps(), inputs=gaps, outputs=(Y,))
    golden = [
        {"age": np.array(a, np.float32), "rooms": np.array(b, np.float32)}
        for a, b in ((1, 2), (np.nan, 2))
    ]
    write_artifact(folder, "ages", module=Ages(), inputs=AGES, outputs=(Y,), golden=golden)


class Offset(nn.Module):
    """age [n], city [n] -> y [n, 2]: the same, -1 for NaN."""

    def forward(self, age: torch.Tensor, city: torch.Tensor) -> torch.Tensor:
        """See the class."""
        return torch.stack([age.nan_to_num(-1.0), city.to(torch.float32)], 1)


def write_cities(folder: Path) -> None:
    """Write the models `cities`, whose unknown names have the index 3, and `strict`."""
    city = TensorSpec(name="city", dtype="int64", shape=(-1,), minimum=0, maximum=3)
    for name, unknown in (("cities", 3), ("strict", None)):
        known = Categories(input="city", names=("Oslo", "Roma", "75001"), unknown=unknown)
        write_artifact(
            *(folder, name, 1, Offset()),
            inputs=(AGES[0], city),
            outputs=(Y,),
            codec=TensorCodecSpec(categories=(known,)),
            golden=[{"age": np.array(1, np.float32), "city": np.array(2)}],
        )
