"""`int8`: by row where linear layers multiply most, static where convolutions do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from export.errors import ExportError, ParityError
from export.variants import int8
from export.variants.base import Draft, NotApplicable, Subject
from export.variants.graphs import OnnxModule
from export.variants.int8 import Int8
from export.variants.onnx import onnx_of
from export.variants.torchscript import TorchScript
from models.definitions import digits
from models.definitions.definition import Definition
from models.tensors import Arrays
from tests.unit.export.definitions import definition, loaded, of_vectors, proved, subject

NEEDED = "pip install 'torchlane[onnx-export,openvino]'"
PACKAGES = ("onnxscript", "openvino")
pytestmark = pytest.mark.skipif(not all(map(find_spec, PACKAGES)), reason=f"needs {NEEDED}")


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


class Patches(Dense):
    """A convolution in front, as in a vision transformer, and most of the work behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv1d(1, 1, kernel_size=3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = self.patch(x[:, None])[:, 0]
        y: torch.Tensor = self.narrow(torch.relu(self.wide(patches)))
        return y


class BranchingConvolution(Convolution):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x if bool(x.sum() > 0) else -x)


class Upwards(nn.Module):
    """x [n, 1, 16] -> y [n, 2], by the other kind of convolution, with a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.ConvTranspose1d(1, 4, 2, stride=2), nn.BatchNorm1d(4)
        self.last = nn.Conv1d(4, 1, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(torch.relu(self.norm(self.up(x)))).flatten(1)
        return y[:, 8:10]


class MyLinear(nn.Linear):
    """Only the class itself is replaced, not its subclasses."""


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
    assert (draft.file, draft.device_kinds, draft.format) == ("int8.zip", ("cpu",), "openvino")
    assert "quantize_static of ONNX Runtime" in draft.made_by
    assert "512 items" in draft.made_by
    proved(loaded(draft, tmp_path, of.definition), of, "int8")
    script = TorchScript("script").make(of, tmp_path)
    sizes = [(tmp_path / each.file).stat().st_size for each in (draft, script)]
    assert sizes[0] <= 0.6 * sizes[1]


@pytest.mark.parametrize("model", [Upwards, Convolution])
def test_convolutions_are_quantized(tmp_path: Path, model: Callable[[], nn.Module]) -> None:
    of = subject(convolution(model))
    form = loaded(Int8().make(of, tmp_path), tmp_path, of.definition)
    assert proved(form, of, "int8").max_absolute > 0


@pytest.mark.parametrize("model", [Dense, Patches])
def test_models_of_linear_layers_are_quantized_by_row(
    tmp_path: Path, model: Callable[[], nn.Module]
) -> None:
    of = subject(of_vectors(model, (64,)))  # and need no calibration
    draft = Int8().make(of, tmp_path)
    made_by = "int8 by row, without calibration + torch.jit.script"
    assert draft == Draft("int8.pt", made_by, ("cpu",))
    form = loaded(draft, tmp_path, of.definition)
    proved(form, of, "int8")
    with pytest.raises(ParityError, match="differs by up to"):
        proved(form, of, "float32")


def test_an_onnx_file_is_static_whatever_its_layers(tmp_path: Path) -> None:
    rng = np.random.default_rng(9)
    items = [{"x": rng.standard_normal((8, 64), dtype=np.float32)}]
    model = of_vectors(Dense, (64,), calibration=lambda: items)
    data, _ = onnx_of(subject(model))
    of = Subject("tiny", model, OnnxModule(data))
    draft = Int8().make(of, tmp_path)
    assert draft.made_by.startswith("ONNX as it was given + quantize_static")
    proved(loaded(draft, tmp_path, model), of, "int8")


def test_calibration_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8, "CALIBRATION_S", -1.0)
    made_by = Int8().make(subject(convolution(calibration=calibration(5))), tmp_path).made_by
    assert ", 8 items + " in made_by  # the first batch, in any case


def test_eager_module_is_not_changed(tmp_path: Path) -> None:
    of = subject(convolution())
    before = [weight.clone() for weight in of.eager.parameters()]
    Int8().make(of, tmp_path)
    after = list(of.eager.parameters())
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert [type(layer) for layer in of.eager.children()] == [nn.Conv1d, nn.Linear]


NOTHING = (
    "^convolutions, and linear layers of at least 4,096 weights, do 0% of the multiplications of "
    "an item, and more than 50% would be needed$"
)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (definition(), NOTHING),
        (of_vectors(lambda: MyLinear(64, 64), (64,)), NOTHING),
        (convolution(calibration=None), "^there is no calibration data: `adopt` reads it with"),
        (convolution(BranchingConvolution), "^torch.export failed: "),
        (of_vectors(Locked, (64,)), "^quantization failed: cannot pickle 'generator' object$"),
    ],
    ids=[
        "no layers",
        "subclass",
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
    ("package", "extra"), [("onnxscript", "onnx-export"), ("openvino", "openvino")]
)
def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(NotApplicable, match=rf"pip install 'torchlane\[{extra}\]'$"):
        Int8().make(subject(convolution()), tmp_path)


@pytest.mark.parametrize(
    "empty", [[], [{"x": np.zeros((0, 1, 16), np.float32)}]], ids=["no batch", "no item"]
)
def test_empty_calibration_data_is_an_error(tmp_path: Path, empty: Sequence[Arrays]) -> None:
    with pytest.raises(ExportError, match=r"^the calibration data of 'tiny' is empty: let"):
        Int8().make(subject(convolution(calibration=lambda: empty)), tmp_path)
    assert list(tmp_path.iterdir()) == []
