"""Forwards that never return: their replica goes on without them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.backends.base import Backend
from app.backends.fake import FakeBackend
from app.backends.selection import Selection
from app.registry.repository import Artifact
from app.serving.installer import BackendFactory
from app.types import Arrays, Device
from tests.artifacts import write_artifact
from tests.integration.harness import Api, serving

HANGING = 66.0
HANG_S = 1.0
QUICK: dict[str, Any] = {"hang_s": HANG_S, "request_timeout_ms": 20_000}


class Stage:
    """Backends that hang on an input for as long as the test wants."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.hangs = 0  # how many forwards may still hang
        self.versions_that_hang: set[int] = set()
        self.made: list[FakeBackend] = []

    @property
    def factory(self) -> BackendFactory:
        def make(artifact: Artifact, selection: Selection, device: Device) -> Backend:
            def script(inputs: Arrays) -> Arrays | None:
                marked = (inputs["x"] == HANGING).any() and self.hangs > 0
                if marked or artifact.id.version in self.versions_that_hang:
                    self.hangs -= 1
                    self.go_on.wait(60.0)
                return {"y": inputs["x"] * 2}

            self.made.append(FakeBackend(script))
            return self.made[-1]

        return make


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.go_on.set()


async def ask(api: Api, x: float) -> tuple[int, object]:
    answer = await api.client.post("/predict", json={"input": [x, 0]})
    body = answer.json()
    return answer.status_code, body["prediction"]["outputs"]["y"][0] if "prediction" in body else (
        body["code"]
    )


async def ready_replicas(api: Api) -> int:
    info = (await api.client.get("/models/double?full=true")).json()
    return sum(each["state"] == "ready" for each in info["replicas"])


async def until_ready(api: Api, replicas: int) -> None:
    async with asyncio.timeout(60):
        while await ready_replicas(api) != replicas:
            await asyncio.sleep(0.02)


async def test_a_hung_forwards_items_move_to_another_replica(double: Path, stage: Stage) -> None:
    async with serving(double, make_backend=stage.factory, devices="cpu*2", **QUICK) as api:
        stage.hangs = 1
        waiting = asyncio.create_task(ask(api, HANGING))
        mate = asyncio.create_task(ask(api, 5))
        await asyncio.sleep(0.01)
        assert await ask(api, 3) == (200, 6)  # by the other one
        assert await waiting == (200, 2 * HANGING)
        assert await mate == (200, 10)
        faults = await api.metric("torchlane_replica_faults_total", kind="hung")
        assert faults == 1
        await until_ready(api, 2)
        stage.go_on.set()
        async with asyncio.timeout(60):  # what it had is closed when it comes back
            while sum("close" in backend.calls for backend in stage.made) != 1:
                await asyncio.sleep(0.01)


async def test_a_hanging_version_does_not_replace_the_old(tmp_path: Path, stage: Stage) -> None:
    write_artifact(tmp_path, "double", version=1)
    stage.versions_that_hang = {2}
    settings = {"devices": "cpu*2", "reload_s": 0.05, **QUICK}
    async with serving(tmp_path, make_backend=stage.factory, **settings) as api:
        write_artifact(tmp_path / "new", "double", version=2)
        (tmp_path / "new" / "double" / "2").rename(tmp_path / "double" / "2")
        x = 100
        async with asyncio.timeout(60):
            while "failed" not in (await api.client.get("/models/double")).text:
                x += 1  # never from the cache
                assert await ask(api, x) == (200, 2 * x)  # the first replica alone tries it
                await asyncio.sleep(0.02)
        assert (await api.client.get("/models/double")).json()["version"] == 1
        await until_ready(api, 2)
        assert await ask(api, 5) == (200, 10)


async def test_too_many_hung_threads_end_the_process(
    double: Path, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr("os._exit", ended.append)
    monkeypatch.setattr("app.processes.serving_process.DEVICE_LOST_GRACE_S", 0.0)
    async with serving(double, make_backend=stage.factory, devices="cpu*4", **QUICK) as api:
        stage.hangs = 4
        async with asyncio.timeout(60):
            for number in range(1_000_000):
                if ended:
                    break
                await ask(api, HANGING)
                await asyncio.sleep(0.01 * (number > 100))
        assert await api.metric("torchlane_replica_faults_total", kind="hung") == 3
        assert await api.metric("torchlane_replica_faults_total", kind="lost") == 1
        stage.go_on.set()
    assert ended == [70]
