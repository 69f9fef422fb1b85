"""`int8`: static where there are convolutions, dynamic where there are linear layers only."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from export.errors import ExportError, ParityError
from export.variants.base import Draft, NotApplicable
from export.variants.int8 import Int8
from export.variants.torchscript import TorchScript
from models.definitions import digits, pairwise
from models.definitions.definition import Definition
from models.tensors import Arrays
from tests.unit.export.definitions import definition, loaded, of_vectors, proved, subject

ENGINE = torch.backends.quantized.engine


class Dense(nn.Module):
    """x [n, 64] -> y [n, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(64, 64)
        self.narrow = nn.Linear(64, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.narrow(torch.relu(self.wide(x)))
        return y


class Convolution(nn.Module):
    """x [n, 1, 16] -> y [n, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 4, kernel_size=3)
        self.last = nn.Linear(56, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(torch.relu(self.conv(x)).flatten(1))
        return y


class BranchingConvolution(Convolution):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x if bool(x.sum() > 0) else -x)


class MyLinear(nn.Linear):
    """Torch quantizes the class itself, not its subclasses."""


class Locked(Dense):
    """Holds something that cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = (number for number in range(3))


def calibration(count: int = 2) -> Callable[[], list[Arrays]]:
    rng = np.random.default_rng(9)
    return lambda: [{"x": rng.standard_normal((8, 1, 16), dtype=np.float32)} for _ in range(count)]


def convolution(module: Callable[[], nn.Module] = Convolution, **changes: object) -> Definition:
    return of_vectors(module, (1, 16), **({"calibration": calibration()} | changes))


def test_static_digits_are_small_and_within_tolerance(tmp_path: Path) -> None:
    of = subject(digits.DEFINITION)
    draft = Int8().make(of, tmp_path)
    made = f"torch.ao.quantization.prepare_fx + convert_fx (static), {ENGINE} + torch.jit.script"
    assert draft == Draft("int8.pt", made, ("cpu",))
    for optimized in (False, True):
        proved(loaded(draft, tmp_path, of.definition, optimized=optimized), of, "int8")
    script = TorchScript("script").make(of, tmp_path)
    sizes = [(tmp_path / each.file).stat().st_size for each in (draft, script)]
    assert sizes[0] <= 0.4 * sizes[1]


def test_calibrated_ranges_are_stored_in_the_file(tmp_path: Path) -> None:
    """Ranges learned on other data give other answers."""
    answers = []
    for size in (1, 100):
        large = convolution(
            calibration=lambda size=size: [{"x": np.full((8, 1, 16), size, np.float32)}]
        )
        form = loaded(Int8().make(subject(large), tmp_path), tmp_path, large)
        answers.append(form(torch.ones(1, 1, 16)).tolist())
    assert answers[0] != answers[1]


def test_models_of_linear_layers_are_quantized_by_row(tmp_path: Path) -> None:
    of = subject(of_vectors(Dense, (64,)))  # and need no calibration
    draft = Int8().make(of, tmp_path)
    assert draft == Draft("int8.pt", "int8 by row + torch.jit.script", ("cpu",))
    form = loaded(draft, tmp_path, of.definition)
    proved(form, of, "int8")
    with pytest.raises(ParityError, match="differs by up to"):
        proved(form, of, "float32")


def test_eager_module_is_not_changed(tmp_path: Path) -> None:
    of = subject(convolution())
    before = [weight.clone() for weight in of.eager.parameters()]
    Int8().make(of, tmp_path)
    after = list(of.eager.parameters())
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert [type(layer) for layer in of.eager.children()] == [nn.Conv1d, nn.Linear]


def test_warning_filters_are_not_changed(tmp_path: Path) -> None:
    before = list(warnings.filters)
    Int8().make(subject(convolution()), tmp_path)
    assert warnings.filters == before


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (pairwise.DEFINITION, "^there is no convolution and no large linear layer to quantize$"),
        (definition(), "^there is no convolution and no large linear layer to quantize$"),
        (
            of_vectors(lambda: MyLinear(8, 2), (8,)),
            "^there is no convolution and no large linear layer to quantize$",
        ),
        (
            of_vectors(lambda: nn.LSTM(16, 2), (4, 16)),
            "^there is no convolution and no large linear layer to quantize$",
        ),
        (
            convolution(calibration=None),
            "^the definition has no calibration data, which convolutions need$",
        ),
        (
            convolution(BranchingConvolution),
            "^torch.fx cannot follow the model: symbolically traced variables cannot be used",
        ),
        (of_vectors(Locked, (64,)), "^quantization failed: cannot pickle 'generator' object$"),
    ],
    ids=[
        "pairwise",
        "no layers",
        "subclass",
        "recurrent",
        "no calibration",
        "control flow",
        "no copy",
    ],
)
def test_unsuitable_models_are_not_applicable(tmp_path: Path, model: Definition, why: str) -> None:
    with pytest.raises(NotApplicable, match=why) as rejected:
        Int8().make(subject(model), tmp_path)
    assert "\n" not in str(rejected.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "empty", [[], [{"x": np.zeros((0, 1, 16), np.float32)}]], ids=["no batch", "no item"]
)
def test_empty_calibration_data_is_an_error(tmp_path: Path, empty: list[Arrays]) -> None:
    with pytest.raises(ExportError, match=r"^the calibration data of 'tiny' is empty: let"):
        Int8().make(subject(convolution(calibration=lambda: empty)), tmp_path)
    assert list(tmp_path.iterdir()) == []
