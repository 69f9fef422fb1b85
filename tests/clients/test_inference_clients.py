"""Clients of the Open Inference Protocol v2, unchanged, against a real server.

They live in an environment of their own, which takes 290 MB and about half a minute to make. Each
runs its checks in a process of its own: two of them define the same protobuf messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.access.entries import make_key
from tests.clients.environments import run
from tests.e2e.server import Server, running


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    """A server of all of them."""
    settings = {"versions": "all", "max_body_bytes": "1MiB", "handlers": "on"}
    with running(folder / "models", folder / "log", **settings) as server:
        yield server


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_tritonclient_over_http(clients: Path, server: Server, folder: Path, kind: str) -> None:
    target = server.url.removeprefix("http://")
    run(clients, "-m", "tests.clients.triton_http", kind, target, folder / "pictures")


def test_kserve_over_rest(clients: Path, server: Server) -> None:
    run(clients, "-m", "tests.clients.kserve_rest", server.url)


def test_kserve_v1_over_rest(clients: Path, server: Server) -> None:
    run(clients, "-m", "tests.clients.kserve_v1", server.url)


def test_open_inference_openapi(clients: Path, server: Server) -> None:
    run(clients, "-m", "tests.clients.open_inference", server.url)


def test_tritonclient_loads_and_unloads(clients: Path, folder: Path, tmp_path: Path) -> None:
    secret, line = make_key("ops", ["admin", "predict"])
    with running(folder / "models", tmp_path / "log", api_keys=line, handlers="on") as server:
        target = server.url.removeprefix("http://")
        run(clients, "-m", "tests.clients.triton_repository", target, secret)
