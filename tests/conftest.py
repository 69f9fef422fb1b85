"""Fixtures that several kinds of tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import app
from app.main import is_compiled
from export.cli import main as export_main
from models.catalog import CATALOG


def pytest_report_header() -> str:
    return f"app: {'compiled, ' if is_compiled() else ''}{Path(app.__file__).parent}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device and there is none")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with digits/1 and pairwise/1, exported once for all tests: do not change."""
    out = tmp_path_factory.mktemp("artifacts")
    assert export_main(["digits", "--out", str(out)], CATALOG) == 0
    # What its compiled form costs, seconds, buys nothing here.
    assert (
        export_main(["pairwise", "--variants", "script,bf16,int8", "--out", str(out)], CATALOG) == 0
    )
    return out
