"""From artifacts on disk to ready, and the ways in which that fails."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from app.backends.base import Backend
from app.backends.fake import FakeBackend
from app.errors import ReplicaError
from app.repository.store import Artifact
from app.types import Arrays, Device
from models.manifest import Variant
from tests.artifacts import write_artifact
from tests.integration.harness import serving, settled


async def test_live_comes_before_ready(tmp_path: Path) -> None:
    write_artifact(tmp_path, "double")
    async with serving(tmp_path, wait_ready=False) as api:
        assert (await api.client.get("/health/live")).json()["status"] == "live"
        early = await api.client.get("/health/ready")
        assert early.status_code == 503
        answer = await api.client.post("/predict", json={"input": [1, 2]})
        assert (answer.status_code, answer.json()["code"]) == (503, "model_not_ready")
        await settled(api)
        assert (await api.client.get("/health/ready")).status_code == 200


async def test_an_empty_repository_is_live_not_ready_and_says_why(tmp_path: Path) -> None:
    async with serving(tmp_path / "none", wait_ready=False) as api:
        await asyncio.sleep(0.1)
        body = (await api.client.get("/health/ready")).json()
        assert body["status"] == "not_ready"
        assert "no model" in body["reasons"][0]


@pytest.mark.parametrize("name", ["script.pt", "manifest.json", "manifest.sha256"])
async def test_an_altered_artifact_is_not_served_and_the_file_is_named(
    tmp_path: Path, name: str
) -> None:
    folder = write_artifact(tmp_path, "double")
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 3] ^= 1
    (folder / name).write_bytes(data)
    async with serving(tmp_path, wait_ready=False) as api:
        await settled(api)
        assert (await api.client.get("/health/live")).status_code == 200
        body = await api.client.get("/health/ready")
        assert body.status_code == 503
        assert name in body.json()["reasons"][0]
        assert str(tmp_path) not in body.text
        answer = await api.client.post("/predict", json={"input": [1, 2]})
        assert answer.json()["code"] == "model_not_ready"


async def test_golden_examples_that_do_not_hold_keep_a_model_from_being_ready(
    tmp_path: Path,
) -> None:
    write_artifact(tmp_path, "double", expected=[{"y": np.array([2.0, 4.5], np.float32)}])
    async with serving(tmp_path, wait_ready=False) as api:
        await settled(api)
        body = (await api.client.get("/health/ready")).json()
        assert "golden example 0" in body["reasons"][0]


async def test_an_older_good_version_takes_the_place_of_a_bad_one(tmp_path: Path) -> None:
    write_artifact(tmp_path, "double", version=1)
    shutil.copytree(tmp_path / "double" / "1", tmp_path / "double" / "2")
    write_artifact(tmp_path, "double", version=3)
    (tmp_path / "double" / "3" / "script.pt").write_bytes(b"broken")
    async with serving(tmp_path) as api:
        info = (await api.client.get("/models/double")).json()
        assert info["version"] == 1
        problems = {each["version"]: each["problem"] for each in info["versions"]}
        assert "script.pt" in problems[3]
        assert "double/1" in problems[2]  # a copy under another number is not that version
        assert problems[1] is None


async def test_models_are_described_without_golden_data_or_digests(tmp_path: Path) -> None:
    write_artifact(tmp_path, "double")
    async with serving(tmp_path, devices="cpu*2") as api:
        info = (await api.client.get("/models")).json()["models"][0]
        assert info["name"] == "double"
        assert info["default"] is True
        assert len(info["replicas"]) == 2
        assert info["manifest"]["inputs"][0]["shape"] == [-1, 2]
        assert not {"golden", "files"} & set(info["manifest"])
        assert (await api.client.get("/models/nope")).status_code == 404


async def test_the_default_model(tmp_path: Path) -> None:
    write_artifact(tmp_path, "one")
    write_artifact(tmp_path, "two")
    async with serving(tmp_path, wait_ready=False) as api:
        await settled(api)
        reasons = (await api.client.get("/health/ready")).json()["reasons"]
        assert reasons == ["the default model 'digits' is not in the repository"]
    async with serving(tmp_path, default_model="two") as api:
        answer = await api.client.post("/predict", json={"input": [1, 2]})
        assert answer.json()["model"] == "two"


async def test_a_sick_replica_is_loaded_anew_and_readiness_tells_the_truth(tmp_path: Path) -> None:
    write_artifact(tmp_path, "double")
    backends: list[FakeBackend] = []

    def make(artifact: Artifact, variant: Variant, device: Device) -> Backend:
        def script(inputs: Arrays) -> Arrays | None:
            if first and (inputs["x"] == 66).any():
                raise ReplicaError("the replica broke")
            return {"y": inputs["x"] * 2}

        first = not backends
        backends.append(FakeBackend(script))
        return backends[-1]

    async with serving(tmp_path, make_backend=make) as api:
        answer = await api.client.post("/predict", json={"input": [66, 0]})
        assert (answer.status_code, answer.json()["code"]) == (500, "backend_failed")
        assert (await api.client.get("/health/ready")).status_code == 503
        answer = await api.client.post("/predict", json={"input": [1, 0]})
        assert (answer.status_code, answer.json()["code"]) == (503, "model_not_ready")
        assert await api.metric("torchlane_replica_ready") == 0
        async with asyncio.timeout(10):
            while (await api.client.get("/health/ready")).status_code != 200:
                await asyncio.sleep(0.05)
        answer = await api.client.post("/predict", json={"input": [66, 0]})
        assert answer.json()["prediction"]["outputs"]["y"] == [132, 0]
        assert "close" in backends[0].calls
        assert await api.metric("torchlane_replica_ready") == 1


async def test_unknown_errors_answer_a_fixed_text_and_are_logged_once(
    tmp_path: Path,
) -> None:
    write_artifact(tmp_path, "double")
    async with serving(tmp_path) as api:

        async def broken() -> None:
            raise RuntimeError("secret /etc/shadow")

        api.app.add_api_route("/broken", broken)
        with capture_logs() as logs:
            answer = await api.client.get("/broken", headers={"x-request-id": "find-me"})
        assert (answer.status_code, answer.json()["code"]) == (500, "internal")
        assert "secret" not in answer.text
        assert answer.headers["x-request-id"] == "find-me"
    assert [(log["event"], log["request_id"]) for log in logs] == [("unhandled_error", "find-me")]
