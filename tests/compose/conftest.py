"""The stack of these tests: built once, brought up once."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.compose.engine import why_no_engine
from tests.compose.stack import UP_LIMIT_S, Stack, stacks


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
def rising(built: Stack) -> Iterator[subprocess.Popen[str]]:
    """The command that brings it up: it takes a minute, which the tests of the images fill."""
    command = built.begin_up()
    try:
        yield command
    finally:
        if command.poll() is None:
            command.kill()
        command.communicate()


@pytest.fixture(scope="session")
def stack(built: Stack, rising: subprocess.Popen[str]) -> Stack:
    """Everything that can run here is up and healthy."""
    told, _ = rising.communicate(timeout=UP_LIMIT_S + 60)
    assert rising.returncode == 0, told
    return built
