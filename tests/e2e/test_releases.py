"""A release in a server with several workers: they agree, and judge what all of them saw."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import torch
from torch import nn

from tests.artifacts import write_artifact
from tests.e2e.server import Server, running


class Fails(nn.Module):
    """Doubles numbers, and fails on large ones."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert float(x.max()) < 100.0, "too large"
        return x * 2


@pytest.fixture
def models(tmp_path: Path) -> Path:
    for version in (2, 3):
        write_artifact(tmp_path / "models", "m", version, None if version == 2 else Fails())
    return tmp_path / "models"


def versions_of(server: Server, x: float, connections: int = 8) -> set[int]:
    """The versions that answer one input; each request has a connection of its own."""
    answers = [
        httpx.post(f"{server.url}/predict", json={"input": [x, 0]}) for _ in range(connections)
    ]
    return {int(answer.headers["x-torchlane-version"]) for answer in answers}


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_workers_agree_and_roll_back_together(models: Path, tmp_path: Path) -> None:
    file, log = tmp_path / "models.toml", tmp_path / "log"
    rules = "stop_if = { errors_above = 0.2, min_requests = 20 }"
    file.write_text(f"[models.m]\nrelease = {{ to = 3, steps = [50, 100], {rules} }}\n")
    settings = {"models_file": str(file), "versions": "all", "workers": "2", "log_format": "json"}

    def state(server: Server) -> str:
        found = httpx.get(f"{server.url}/models/m").json()["release"]["state"]
        return str(found)

    with running(models, log, **settings) as server:
        until(lambda: state(server) == "running")
        time.sleep(2.5)  # both workers look once a second, and the judge's first look only counts
        seen = [versions_of(server, x) for x in range(12)]
        assert all(len(each) == 1 for each in seen)
        assert set.union(*seen) == {2, 3}
        with httpx.Client(headers={"connection": "close"}) as client:
            for number in range(100):
                client.post(f"{server.url}/predict", json={"input": [1000 + number, 0]})
        until(lambda: state(server) == "rolled_back")
        until(lambda: set.union(*(versions_of(server, x) for x in range(12))) == {2})
    events = [json.loads(line).get("event") for line in log.read_text().splitlines()]
    assert events.count("release_step") == events.count("release_rolled_back") == 1
    with running(models, tmp_path / "again", **settings) as server:
        assert versions_of(server, 1) == {2}
        assert state(server) == "rolled_back"
