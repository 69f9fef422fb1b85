"""Files that several tests adopt, and an artifact that several sign."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from models.system.cores import CoreTime
from tests.keys import Pair, make_pair
from tests.unit.export.definitions import CATALOG
from tests.unit.export.jobs import make
from tests.unit.export.torchscripts import BRIGHTNESS, SUMS, written


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A `.pt` as plain torch.jit.trace(...).save writes it."""
    return written(tmp_path_factory.mktemp("sums"), SUMS, "sums.pt")


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("light"), BRIGHTNESS, "light.pt")


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of tiny, version 1: do not change."""
    return make(tmp_path_factory.mktemp("out"), CATALOG["tiny"], "script", profile=True).folder


@pytest.fixture
def old(exported: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "out/tiny/1"
    shutil.copytree(exported, folder)
    return folder


@pytest.fixture(autouse=True)
def _quick_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure CPU layouts in short slices, independent of the load on this machine."""
    monkeypatch.setattr("models.cpu_layout.SLICE_S", 0.001)
    monkeypatch.setattr("models.cpu_layout.core_time", CoreTime)


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return make_pair(tmp_path)
