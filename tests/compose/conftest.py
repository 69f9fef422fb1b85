"""The stack of these tests: built once, brought up once."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.compose.engine import why_no_engine
from tests.compose.stack import Stack, stacks


@pytest.fixture(scope="session", autouse=True)
def _engine() -> None:
    reason = why_no_engine()
    if reason and "DOCKER_HOST" in os.environ:
        pytest.fail(f"DOCKER_HOST names an engine, but {reason}")
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Images are built; nothing runs yet."""
    yield from stacks(tmp_path_factory.mktemp("compose"))


@pytest.fixture(scope="session")
def stack(built: Stack) -> Stack:
    """Everything that can run here is up and healthy."""
    built.up()
    return built
