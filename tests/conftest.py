"""Fixtures that several kinds of tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

import app
from app.main import is_compiled
from export.cli import main as export_main
from models.catalog import CATALOG
from models.definitions import digits


def pytest_report_header() -> str:
    return f"app: {'compiled, ' if is_compiled() else ''}{Path(app.__file__).parent}"


HERE = Path(__file__).parent
ALONE = ("fuzz", "chaos", "e2e")  # real servers in real time: last, and one after the other


def _is_alone(path: Path) -> bool:
    return path.relative_to(HERE).parts[0] in ALONE


class TwoThenOne(LoadScopeScheduling):  # type: ignore[misc]  # untyped
    """Where pytest-xdist has several workers: a file at a time for each, then one for the rest."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "alone" if _is_alone(self.config.rootpath / file) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> TwoThenOne:
    config.option.loadscopereorder = False  # as they were collected
    return TwoThenOne(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _is_alone(item.path))
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
