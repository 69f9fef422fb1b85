"""`openvino`: as exact as the others, made of any program, and without a word to the internet."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from export.variants.base import NotApplicable
from export.variants.openvino import OpenVino
from tests.unit.export.definitions import loaded, of_vectors, proved, subject


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


class Unknown(Network):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layers(x)
        return y.add(torch.linalg.eigvalsh(x.view(-1, 8, 8)).sum())


class Branching(Network):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x[:, :2] if bool(x.sum() > 0) else self.layers(x)
        return y


@pytest.fixture
def _installed() -> None:
    pytest.importorskip("openvino", reason="needs OpenVINO: pip install 'torchlane[openvino]'")


@pytest.mark.usefixtures("_installed")
def test_reloaded_variant_matches_eager(tmp_path: Path) -> None:
    made = subject(of_vectors(Network, (64,)))
    draft = OpenVino().make(made, tmp_path)
    assert (draft.file, draft.format, draft.device_kinds) == ("openvino.zip", "openvino", ("cpu",))
    again = loaded(draft, tmp_path, made.definition)
    assert proved(again, made, "float32", max_batch=9).max_absolute < 1e-5


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize(
    ("module", "why"),
    [(Unknown, "OpenVINO cannot convert it"), (Branching, r"torch\.export failed")],
)
def test_a_model_that_cannot_be_converted(
    tmp_path: Path, module: type[nn.Module], why: str
) -> None:
    with pytest.raises(NotApplicable, match=why):
        OpenVino().make(subject(of_vectors(module, (64,))), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(NotApplicable, match=r"pip install 'torchlane\[openvino\]'; convolutional"):
        OpenVino().make(subject(of_vectors(Network, (64,))), tmp_path)


@pytest.mark.usefixtures("_installed")
def test_nothing_is_reported_over_the_internet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `openvino.convert_model` would do."""
    telemetry = pytest.importorskip("openvino_telemetry").main.Telemetry

    def begun(*_: object, **__: object) -> None:
        pytest.fail("its telemetry has begun")

    monkeypatch.setattr(telemetry, "__init__", begun)
    assert OpenVino().make(subject(of_vectors(Network, (64,))), tmp_path).file == "openvino.zip"
