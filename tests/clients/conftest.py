"""What several clients of the Open Inference Protocol share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.environments import environment
from tests.clients.models import write_all, write_files
from tests.conftest import Once


@pytest.fixture(scope="module")
def clients(once: Once) -> Path:
    """An environment with the clients."""
    return environment(once, "inference_clients")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models and pictures."""
    made = tmp_path_factory.mktemp("clients")
    write_all(made / "models")
    write_files(made / "pictures")
    return made
