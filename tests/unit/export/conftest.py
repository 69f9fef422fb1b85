"""Files that several tests adopt."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.export.torchscripts import BRIGHTNESS, SUMS, written


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A `.pt` as plain torch.jit.trace(...).save writes it."""
    return written(tmp_path_factory.mktemp("sums"), SUMS, "sums.pt")


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("light"), BRIGHTNESS, "light.pt")
