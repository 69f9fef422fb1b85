"""Clients of the Open Inference Protocol over gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.environments import run
from tests.e2e.server import free_port, running


@pytest.fixture(scope="module")
def target(folder: Path) -> Iterator[str]:
    """The host and port of a server of all models."""
    port = str(free_port())
    settings = {"versions": "all", "grpc_port": port, "handlers": "on"}
    with running(folder / "models", folder / "log-grpc", **settings):
        yield f"127.0.0.1:{port}"


def test_tritonclient(clients: Path, target: str, folder: Path) -> None:
    run(clients, "-m", "tests.clients.triton_grpc", target, folder / "pictures")


def test_kserve(clients: Path, target: str) -> None:
    run(clients, "-m", "tests.clients.kserve_grpc", target)
