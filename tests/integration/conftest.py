"""The repository and the server of most of these tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from app.errors import ModelError
from app.types import Arrays
from tests.artifacts import write_artifact
from tests.integration.listening import Doubles, Listening, listening


@pytest.fixture(scope="session")
def double(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with double/1 and nothing else: do not change it."""
    folder = tmp_path_factory.mktemp("double")
    write_artifact(folder, "double")
    return folder


@pytest.fixture(scope="module")
def models(double: Path) -> Path:
    """What a module serves; some have models of their own."""
    return double


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(models: Path) -> AsyncIterator[Listening]:
    """A server with its usual settings, for all tests of a module; counters only grow."""
    async with listening(models) as it:
        yield it


@pytest_asyncio.fixture(loop_scope="module")
async def server(shared: Listening) -> AsyncIterator[Listening]:
    """The same, without connections of other tests."""
    yield shared
    await shared.close()


@pytest.fixture
def doubles() -> Doubles:
    """Backends of `doubling`."""

    def fail_on_13(inputs: Arrays) -> Arrays | None:
        if (inputs["x"] == 13).any():
            raise ModelError("thirteen")
        return None

    return Doubles(fail_on_13)


@pytest.fixture
async def doubling(tmp_path: Path, doubles: Doubles) -> AsyncIterator[Listening]:
    """A server of double/3, whose batches with a 13 fail."""
    write_artifact(tmp_path, "double", 3)
    async with listening(tmp_path, make_backend=doubles) as opened:
        yield opened
