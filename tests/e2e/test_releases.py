"""A release in a server with several workers: they agree, and judge what all of them saw."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import httpx
import pytest
import torch
from torch import nn

from app.access.entries import ADMIN, PREDICT, make_key
from tests.artifacts import write_artifact
from tests.e2e.server import PLAIN, Server, running


class Differs(nn.Module):
    """Triples numbers from 10 on, and doubles the others, as the example has them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x < 10, x * 2, x * 3)


class Fails(nn.Module):
    """Doubles numbers, and fails on large ones."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert float(x.max()) < 100.0, "too large"
        return x * 2


def publish(folder: Path, newest: nn.Module) -> Path:
    """A repository with versions 2 and 3 of `m`."""
    for version, module in ((2, None), (3, newest)):
        write_artifact(folder / "models", "m", version, module)
    return folder / "models"


def versions_of(server: Server, x: float, connections: int = 8) -> set[int]:
    """The versions that answer one input; each request has a connection of its own."""
    url, body = f"{server.url}/predict", {"input": [x, 0]}
    answers = [httpx.post(url, json=body, verify=PLAIN) for _ in range(connections)]
    return {int(answer.headers["x-torchlane-version"]) for answer in answers}


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def state(server: Server) -> str:
    """What all workers say; empty if they differ: each request has a connection of its own."""
    urls = [f"{server.url}/models/m"] * 4
    told = {str(httpx.get(url, verify=PLAIN).json()["release"]["state"]) for url in urls}
    return told.pop() if len(told) == 1 else ""


def ask(server: Server, numbers: Iterable[float]) -> None:
    """Send numbers, each over a connection of its own, so that they reach all workers."""
    with httpx.Client(headers={"connection": "close"}, verify=PLAIN) as client:
        for number in numbers:
            client.post(f"{server.url}/predict", json={"input": [number, 0]})


def test_workers_agree_and_roll_back_together_even_if_some_are_killed(tmp_path: Path) -> None:
    models, file, log = publish(tmp_path, Fails()), tmp_path / "models.toml", tmp_path / "log"
    rules = "stop_if = { errors_above = 0.2, min_requests = 20 }"
    file.write_text(f"[models.m]\nrelease = {{ to = 3, steps = [50, 100], {rules} }}\n")
    settings = {"models_file": str(file), "versions": "all", "workers": "2", "log_format": "json"}

    with running(models, log, **settings) as server:
        until(lambda: state(server) == "running")
        time.sleep(2.5)  # both workers look once a second, and the judge's first look only counts
        seen = [versions_of(server, x) for x in range(12)]
        assert all(len(each) == 1 for each in seen)
        assert set.union(*seen) == {2, 3}
        for killed in (1, 2):  # one of them judges
            os.kill(server.events("worker_started")[killed - 1]["pid"], signal.SIGKILL)
            until(lambda: len(server.events("worker_loaded")) == killed)  # noqa: B023
        assert [versions_of(server, x) for x in range(12)] == seen
        time.sleep(2.5)  # as above
        ask(server, range(1000, 1100))
        until(lambda: state(server) == "rolled_back")
        until(lambda: set.union(*(versions_of(server, x) for x in range(12))) == {2})
    events = [json.loads(line).get("event") for line in log.read_text().splitlines()]
    assert events.count("release_step") == events.count("release_rolled_back") == 1
    with running(models, tmp_path / "again", **settings) as server:
        assert versions_of(server, 1) == {2}
        assert state(server) == "rolled_back"


@pytest.mark.soak
def test_a_version_with_other_answers_goes_back_in_its_first_step(tmp_path: Path) -> None:
    models, file = publish(tmp_path, Differs()), tmp_path / "models.toml"
    rules = "stop_if = { agreement_below = 0.98, min_requests = 10 }"
    file.write_text(f"[models.m]\nrelease = {{ to = 3, steps = [1, 100], {rules} }}\n")
    settings = {"models_file": str(file), "versions": "all", "workers": "2", "log_format": "json"}
    with running(models, tmp_path / "log", **settings) as server:
        until(lambda: state(server) == "running")
        assert httpx.get(f"{server.url}/models/m", verify=PLAIN).json()["shadow"]["version"] == 3
        time.sleep(2.5)  # both workers look once a second, and the judge's first look only counts
        for begin in range(80):
            ask(server, (10 + begin + number / 100 for number in range(100)))
            if state(server) != "running":
                break
        until(lambda: state(server) == "rolled_back")
        found = httpx.get(f"{server.url}/models/m", verify=PLAIN).json()
        assert "less than agreement_below = 0.98" in found["release"]["reason"]
        assert (found["release"]["step"], found["shadow"]) == (1, None)
        assert server.metric("torchlane_release_rolled_back") == 1


@pytest.mark.soak
def test_every_worker_shows_what_all_have_kept(tmp_path: Path) -> None:
    models, file = publish(tmp_path, Differs()), tmp_path / "models.toml"
    shadow = "shadow = { version = 3, share = 1, keep = 100 }"
    file.write_text(f"[models.m]\nweights = {{ 2 = 1 }}\n{shadow}\n")
    secret, entry = make_key("root", [ADMIN, PREDICT])
    settings = {"models_file": str(file), "versions": "all", "workers": "2", "api_keys": entry}
    headers = {"x-api-key": secret}

    def kept(server: Server) -> list[int]:
        """The numbers that are kept, by whichever worker answers."""
        found = httpx.get(f"{server.url}/models/m/shadow", headers=headers).json()["differing"]
        return sorted(each["request"]["inputs"][0]["data"][0] for each in found)

    with running(models, tmp_path / "log", **settings, open_metrics="true") as server:
        time.sleep(1.5)  # all workers have looked
        numbers = [*range(10, 40)]
        for number in numbers:
            body = {"input": [number, 0]}
            httpx.post(f"{server.url}/predict", json=body, headers=headers)
        until(lambda: all(kept(server) == numbers for _ in range(6)))
