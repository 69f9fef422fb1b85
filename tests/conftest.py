"""Fixtures that several kinds of tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import app
from app.main import is_compiled
from export.cli import main as export_main
from models.catalog import CATALOG
from models.definitions import digits


def pytest_report_header() -> str:
    return f"app: {'compiled, ' if is_compiled() else ''}{Path(app.__file__).parent}"


HERE = Path(__file__).parent
LAST = (
    "fuzz",
    "chaos",
    "e2e",
)  # real servers in real time: what is quick, and minds no company, first


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.relative_to(HERE).parts[0] in LAST)
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device and there is none")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def trained_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state_dict of digits, trained as the export trains it, once for all tests."""
    eager = digits.Digits().eval()
    digits.DEFINITION.train(eager, lambda done, total, note: None)  # type: ignore[misc]
    weights = tmp_path_factory.mktemp("trained") / "digits.pt"
    torch.save(eager.state_dict(), weights)
    return weights


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory, trained_digits: Path) -> Path:
    """A repository with digits/1 and pairwise/1, exported once for all tests: do not change."""
    out = tmp_path_factory.mktemp("artifacts")
    weights = ["--weights", str(trained_digits)]
    assert export_main(["digits", *weights, "--out", str(out)], CATALOG) == 0
    # What its compiled form costs, seconds, buys nothing here.
    assert (
        export_main(["pairwise", "--variants", "script,bf16,int8", "--out", str(out)], CATALOG) == 0
    )
    return out
