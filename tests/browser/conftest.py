"""One browser for the tests of a file; pages that may not complain."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page
from torch import nn

from models.codec_specs import TensorCodecSpec
from tests.artifacts import Y, write_artifact
from tests.browser.chromium import Visits, chromium
from tests.e2e.server import Server, running
from tests.integration.test_pictures import MASK, Segments
from tests.integration.test_places import how
from tests.integration.test_places import write as write_light

HOSTILE = ("<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def visit(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Visits]:
    visits = Visits(browser, request.node.name)
    yield visits
    visits.keep_pictures()
    visits.close()


@pytest.fixture(scope="module")
def scripts(browser: Browser, server: Server) -> Iterator[Page]:
    """A page whose modules are imported; no test changes it."""
    visits = Visits(browser, "scripts")
    yield visits(server.url)
    visits.close()


@pytest.fixture(scope="module")
def one_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with `double`, for tests that need no trained model."""
    folder = tmp_path_factory.mktemp("models")
    write_artifact(folder, "double")
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    """A repository with digits, which is the default, and small models."""
    folder = tmp_path_factory.mktemp("models")
    shutil.copytree(repository / "digits", folder / "digits")
    write_artifact(folder, "double")
    write_artifact(folder, "segments", module=Segments(), outputs=(MASK, Y))
    write_light(folder, "light", how(polarity="light-on-dark"))
    write_artifact(folder, "hostile", 1, nn.Identity(), codec=TensorCodecSpec(labels=HOSTILE))
    return folder


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[Server]:
    """A server without keys."""
    default = "digits" if (models / "digits").exists() else "double"
    with running(models, models.parent / "log", default_model=default) as found:
        yield found
