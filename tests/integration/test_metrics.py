"""GET /metrics of a server that loads, works, rejects requests and loses a replica."""

from __future__ import annotations

import asyncio
import threading
from importlib.metadata import version
from pathlib import Path

from app.backends.base import Backend
from app.backends.fake import FakeBackend
from app.backends.selection import Selection
from app.registry.repository import Artifact
from app.types import Arrays, Device
from tests.artifacts import write_artifact
from tests.integration.harness import Api, serving

SLOW, BREAKS = 66, 77
IN_FLIGHT = "torchlane_requests_in_flight"


async def wait_for(api: Api, name: str, wanted: float) -> None:
    async with asyncio.timeout(10):
        while await api.metric(name) != wanted:
            await asyncio.sleep(0.01)


async def test_a_request_is_in_flight_until_it_is_answered(tmp_path: Path) -> None:
    write_artifact(tmp_path, "double")
    gate = threading.Event()

    def make(artifact: Artifact, selection: Selection, device: Device) -> Backend:
        def script(inputs: Arrays) -> Arrays:
            if (inputs["x"] == SLOW).any():
                assert gate.wait(20)
            return {"y": inputs["x"] * 2}

        return FakeBackend(script)

    async with serving(tmp_path, make_backend=make) as api:
        calls = [
            asyncio.create_task(api.client.post("/predict", json={"input": [SLOW, n]}))
            for n in range(3)
        ]
        await wait_for(api, IN_FLIGHT, 3)
        wrong = await api.client.post("/predict", json={"input": "wrong"})
        assert wrong.status_code == 422
        assert await api.metric(IN_FLIGHT) == 3  # an answered one has left, an error too
        calls[0].cancel()
        await wait_for(api, IN_FLIGHT, 2)  # so has one whose caller went away
        gate.set()
        assert [(await call).status_code for call in calls[1:]] == [200, 200]
        assert await api.metric(IN_FLIGHT) == 0
        timed = {"route": "/predict", "outcome": "ok"}
        assert await api.metric("torchlane_request_seconds_count", **timed) == 2


async def test_only_predictions_are_timed(tmp_path: Path) -> None:
    write_artifact(tmp_path, "double")
    async with serving(tmp_path) as api:
        await api.client.get("/health/live")
        await api.client.get("/no/such/path")
        assert await api.metric("torchlane_request_seconds_count") == 0
        await api.client.post("/models/double/predict", json={"input": [1, 2]})
        route = "/models/{name}/predict"
        assert await api.metric("torchlane_request_seconds_count", route=route) == 1


async def test_build_and_model_info_are_exported(tmp_path: Path) -> None:
    write_artifact(tmp_path, "double", version=3)
    async with serving(tmp_path, variant="script", queue_limit_items=7, cache_bytes=12345) as api:
        build = {"version": version("torchlane"), "torch": version("torch")}
        assert await api.metric("torchlane_build_info", **build) == 1
        model = {"model": "double", "version": "3"}
        pinned = {**model, "variant": "script", "precision": "float32"}
        assert await api.metric("torchlane_model_info", **pinned) == 1
        assert await api.metric("torchlane_queue_limit_items", **model) == 7
        assert await api.metric("torchlane_cache_limit_bytes") == 12345
        assert await api.metric("torchlane_bodies_limit_bytes") == 1 << 30
        assert await api.metric("torchlane_bodies_bytes") == 0


async def test_a_draining_server_is_not_ready(tmp_path: Path) -> None:
    write_artifact(tmp_path, "double")
    async with serving(tmp_path) as api:
        api.app.state.lifecycle.begin_drain(10)
        assert await api.metric("torchlane_ready") == 0
