"""`openvino` and `onnx`: as exact as the others, made of any program, silent to the internet."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from export.variants.base import NotApplicable
from export.variants.programs import program_of
from export.variants.registry import MAKERS
from tests.artifacts import small_subject, small_variant
from tests.unit.export.definitions import loaded, of_vectors, proved, subject

ROOT = Path(__file__).parents[4]
# Variant -> its file, its converter, the package it needs, what it says without.
RUNTIMES = {
    "openvino": (
        "openvino.zip",
        "OpenVINO",
        "openvino",
        "OpenVINO: pip install 'torchlane[openvino]'",
    ),
    "onnx": (
        "model.onnx",
        "torch.onnx",
        "onnxscript",
        "ONNX Runtime and onnxscript: pip install 'torchlane[onnx-export]'",
    ),
}


class Network(nn.Module):
    """x [n, 64] -> y [n, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layers(x)
        return y


def test_variants_share_a_program_and_leave_the_model_as_it_is(tmp_path: Path) -> None:
    inputs = small_subject()  # which is compiled for other tests too
    before = {name: each.clone() for name, each in inputs.eager.state_dict().items()}
    program = program_of(inputs, "cpu")
    for name in RUNTIMES:
        MAKERS[name].make(inputs, tmp_path)
    assert program_of(inputs, "cpu") is program
    after = inputs.eager.state_dict()
    assert all(torch.equal(after[name], each) for name, each in before.items())


class Unknown(Network):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layers(x)
        return y.add(torch.linalg.eigvalsh(x.view(-1, 8, 8)).sum())


class Branching(Network):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x[:, :2] if bool(x.sum() > 0) else self.layers(x)
        return y


@pytest.fixture(params=RUNTIMES)
def variant(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def _installed(variant: str) -> None:
    pytest.importorskip(RUNTIMES[variant][2], reason=f"needs the extra for {variant}")


@pytest.mark.usefixtures("_installed")
def test_reloaded_variant_matches_eager(tmp_path: Path, variant: str) -> None:
    result = subject(of_vectors(Network, (64,)))
    draft = MAKERS[variant].make(result, tmp_path)
    expected = (RUNTIMES[variant][0], variant, ("cpu",))
    assert (draft.file, draft.format, draft.device_kinds) == expected
    again = loaded(draft, tmp_path, result.definition)
    assert proved(again, result, "float32", max_batch=9).max_absolute < 1e-5


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize("module", [Unknown, Branching])
def test_a_model_that_cannot_be_converted(
    tmp_path: Path, module: type[nn.Module], variant: str
) -> None:
    by = (
        "torch.export failed"
        if module is Branching
        else f"{RUNTIMES[variant][1]} cannot convert it"
    )
    with pytest.raises(NotApplicable, match=re.escape(by)) as excinfo:
        MAKERS[variant].make(subject(of_vectors(module, (64,))), tmp_path)
    assert "\n" not in str(excinfo.value)
    assert list(tmp_path.iterdir()) == []


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: str) -> None:
    _, _, package, says = RUNTIMES[variant]
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(NotApplicable, match=re.escape(f"it needs {says}")):
        MAKERS[variant].make(subject(of_vectors(Network, (64,))), tmp_path)


def test_openvino_reports_nothing_over_the_internet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `openvino.convert_model` would do."""
    telemetry = pytest.importorskip("openvino_telemetry").main.Telemetry

    def begun(*_: object, **__: object) -> None:
        pytest.fail("its telemetry has begun")

    monkeypatch.setattr(telemetry, "__init__", begun)
    draft = MAKERS["openvino"].make(subject(of_vectors(Network, (64,))), tmp_path)
    assert draft.file == "openvino.zip"


def test_onnx_runtime_reports_nothing_over_the_internet(tmp_path: Path) -> None:
    """As it does by default: it then keeps an identifier of the device, and events to send."""
    (tmp_path / "model.onnx").write_bytes(small_variant("onnx").data)
    program = (
        "import pathlib, sys, torch; from models.runtimes.onnx_models import load_onnx;"
        "from models.runtimes.base import VariantFile;"
        "form = load_onnx(VariantFile.of(pathlib.Path(sys.argv[1]).read_bytes()));"
        "print(form(torch.ones(2, 1, 4, 4), torch.ones(2, 3))[0].shape)"
    )
    home = tmp_path / "home"
    home.mkdir()
    places = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "TMPDIR"), str(home))
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "model.onnx")],
        cwd=ROOT,
        env={**os.environ, **places},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("torch.Size([2, 3])\n", "")
    assert list(home.iterdir()) == []
