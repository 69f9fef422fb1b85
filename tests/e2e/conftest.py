"""What real processes are started with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.artifacts import write_artifact


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A repository with the model `double`."""
    write_artifact(tmp_path / "models", "double")
    return tmp_path / "models"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where the server's output goes."""
    return tmp_path / "log"
