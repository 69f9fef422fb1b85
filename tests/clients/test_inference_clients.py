"""Clients of the Open Inference Protocol v2, unchanged, against a real server.

They live in an environment of their own, which takes 290 MB and about half a minute to make. Each
runs its checks in a process of its own: two of them define the same protobuf messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from app.access.entries import make_key
from models.definitions import digits
from models.preprocess import preprocess
from tests.clients.environments import run
from tests.clients.models import write_digits
from tests.e2e.server import Server, free_port, running


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    """A server of all of them."""
    settings = {"versions": "all", "max_body_bytes": "1MiB"}
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


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_tritonclient_loads_and_unloads(
    clients: Path, folder: Path, tmp_path: Path, kind: str
) -> None:
    secret, line = make_key("ops", ["admin", "predict"])
    with running(folder / "models", tmp_path / "log", api_keys=line) as server:
        target = server.url.removeprefix("http://")
        run(clients, "-m", "tests.clients.triton_repository", kind, target, secret)


def test_all_protocols_answer_equal_bytes_and_compute_once(
    clients: Path, trained_digits: Path, tmp_path: Path
) -> None:
    write_digits(tmp_path / "models", trained_digits)
    images = digits.pictures()[0][digits.split()[1]]
    inputs = np.stack([preprocess(digits.png(image), digits.PREPROCESS) for image in images])
    np.save(tmp_path / "inputs.npy", inputs)
    files = tmp_path / "inputs.npy", tmp_path / "answers.npz"
    octets = {"content-type": "application/octet-stream", "accept": "application/octet-stream"}
    grpc_port = str(free_port())
    with running(tmp_path / "models", tmp_path / "log", grpc_port=grpc_port) as server:
        native = httpx.post(f"{server.url}/batch-predict", content=inputs.tobytes(), headers=octets)
        target = server.url.removeprefix("http://")
        run(clients, "-m", "tests.clients.triton_digits", target, f"127.0.0.1:{grpc_port}", *files)
        computed = server.metric("torchlane_items_computed_total")
    with np.load(tmp_path / "answers.npz") as answers:
        assert set(answers) == {"json", "binary", "grpc", "singles"}
        for name, found in answers.items():
            assert found.tobytes() == native.content, name
    assert computed == len({each.tobytes() for each in inputs}) > 300
