"""Fast definitions, each of which does one thing right or wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._jit_internal import is_scripting

from export.proving import verify
from export.proving.reference import reference_of
from export.variants.base import TOLERANCES, Draft, Subject
from models.choices import Precision
from models.codec_specs import TensorCodecSpec
from models.definitions.definition import Definition, HeldOut, Progress
from models.manifest import Parity
from models.runtimes.base import VariantFile
from models.runtimes.forms import Forward, load_form
from models.tensors import Array, Arrays
from tests.unit.models.manifests import spec


class Scale(nn.Module):
    """x [n, 2] -> weight * x."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


class Liar(nn.Module):
    """Gives other answers once it is scripted."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if is_scripting():
            return x + 0.001
        return x


class Moody(nn.Module):
    """Fails on batches of more than three once it is scripted."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if is_scripting() and x.shape[0] > 3:
            raise ValueError("more than three")
        return x * 1


class NotANumber(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / torch.zeros_like(x)


class ScriptedNotANumber(nn.Module):
    """Finite only in Python."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if is_scripting():
            return x * float("nan")
        return x


class SlowInHalf(nn.Module):
    """As on a processor without instructions for half precision; nothing for torch.export."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if bool(x.sum() > 1e9):
            return y
        if x.dtype == torch.bfloat16:
            for _ in range(5_000):
                y = y * 1
        return y


class LossyNotANumber(nn.Module):
    """Too large a number where it is computed in half precision and scripted."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if is_scripting() and x.dtype != torch.float32:
            return x * float("inf") * 0
        if bool(x.sum() > 1e9):
            return x * 2
        return x


class Unscriptable(nn.Module):
    """Python that TorchScript has no words for; a trace sees only the tensors."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum((x for _ in range(2)), start=x * 0)


class Branching(nn.Module):
    """What it does depends on values: torch.export cannot follow, TorchScript can."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 0):
            return x * 2
        return x


class Fine(nn.Module):
    """More digits than half precision has; and nothing for torch.export."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 1e9):
            return x
        return (x + 1000) - 1000


class Close(nn.Module):
    """x as it is; torch.export does not understand it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 1e9):
            return x * 2
        return x * 1


class Mixed(nn.Module):
    """x [n, 2] and index [n], integers -> a row of a table + x [n, 2], and index + 1 [n]."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(300, 2)

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + self.table(index), index + 1


class Bracketed(nn.Module):
    """Cannot be scripted, nor traced: its reason looks like a terminal's markup."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
            raise ValueError("paths must be one of [/x, /y]")
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


def close_calls() -> HeldOut:
    """For Close: eager is right about all of them; in half precision the two numbers are one."""
    return HeldOut({"x": np.tile(np.array([[1, 1.001]], np.float32), (8, 1))}, np.ones(8, int))


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


def of_vectors(
    module: Callable[[], nn.Module], item: tuple[int, ...], **changes: Any
) -> Definition:
    """A module x [n, *item] -> y [n, 2] without training."""

    def draw(rng: np.random.Generator, batch: int) -> Arrays:
        return {"x": rng.standard_normal((batch, *item), dtype=np.float32)}

    def golden() -> list[Arrays]:
        return [{"x": row} for row in draw(np.random.default_rng(5), 3)["x"]]

    fields: dict[str, Any] = {
        "inputs": (spec("x", shape=(-1, *item)),),
        "train": None,
        "random_inputs": draw,
        "golden_inputs": golden,
        "example": golden()[0]["x"].tolist,
        "held_out": None,
    }
    return definition(module, **(fields | changes))


def _mixed(rng: np.random.Generator, batch: int) -> dict[str, Array]:
    return {
        "x": rng.standard_normal((batch, 2), dtype=np.float32),
        "index": rng.integers(0, 300, batch),
    }


MIXED = definition(
    Mixed,
    inputs=(spec("x", shape=(-1, 2)), spec("index", "int64", (-1,))),
    outputs=(spec("row", shape=(-1, 2)), spec("next", "int64", (-1,))),
    train=None,
    random_inputs=_mixed,
    golden_inputs=lambda: [
        {"x": np.array([1, 2], np.float32), "index": np.array(index)} for index in (0, 299)
    ],
    example=lambda: {"x": [1.0, 2.0], "index": 3},
    held_out=None,
)

CATALOG = {
    "tiny": definition(),
    "liar": definition(Liar),
    "moody": definition(Moody),
    "nan": definition(NotANumber),
    "unscriptable": definition(Unscriptable),
}


def quiet(done: int, total: int, note: str) -> None:
    """A progress that shows nothing."""


def subject(model: Definition, name: str = "tiny") -> Subject:
    """Untrained, with the same weights every time."""
    torch.manual_seed(0)
    return Subject(name, model, model.build().eval())


def loaded(draft: Draft, folder: Path, model: Definition, *, optimized: bool = False) -> Forward:
    """What a maker wrote, as a server loads it."""
    files = [VariantFile.of((folder / file).read_bytes()) for file in draft.files]
    return load_form(files, draft.format, model.inputs, torch.device("cpu"), optimized=optimized)


def proved(forward: Forward, of: Subject, precision: Precision, max_batch: int = 5) -> Parity:
    """Compare with eager, golden examples included; raises outside the tolerance."""
    against = reference_of(of.eager, of.definition, max_batch, quiet)
    return verify.check_parity(forward, against, TOLERANCES[precision], quiet)
