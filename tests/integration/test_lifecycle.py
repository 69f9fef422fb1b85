"""From artifacts on disk to ready, and how that fails."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs
from torch import nn

from app.backends.base import Backend
from app.backends.fake import FakeBackend
from app.backends.selection import Selection
from app.errors import DeviceLost, ReplicaError
from app.registry.repository import Artifact
from app.serving.installer import BackendFactory
from app.types import Arrays, Device
from tests.artifacts import write_artifact
from tests.integration.harness import held, serving, settled
from tests.integration.listening import listening
from tests.integration.wire import request


async def test_live_comes_before_ready(double: Path) -> None:
    async with serving(double, wait_ready=False) as api:
        assert (await api.client.get("/health/live")).json()["status"] == "live"
        early = await api.client.get("/health/ready")
        assert early.status_code == 503
        answer = await api.client.post("/predict", json={"input": [1, 2]})
        assert (answer.status_code, answer.json()["code"]) == (503, "model_not_ready")
        await settled(api)
        assert (await api.client.get("/health/ready")).status_code == 200


async def test_an_empty_repository_is_not_ready(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with serving(tmp_path / "none", wait_ready=False) as api:
            async with asyncio.timeout(60):
                while not any(log["event"] == "repository_empty" for log in logs):
                    await asyncio.sleep(0.01)
            body = (await api.client.get("/health/ready")).json()
        problems = [log["problem"] for log in logs if log["event"] == "repository_empty"]
        assert [text.partition(" ")[0] for text in problems] == [str(tmp_path / "none")]
        assert body["status"] == "not_ready"
        assert "no model" in body["reasons"][0]


async def test_an_older_good_version_replaces_a_bad_one(tmp_path: Path) -> None:
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


async def test_the_default_model(tmp_path: Path) -> None:
    write_artifact(tmp_path, "two")
    write_artifact(tmp_path, "one")
    async with serving(tmp_path) as api:
        answer = await api.client.post("/predict", json={"input": [1, 2]})
        assert (answer.status_code, answer.json()["code"]) == (404, "model_not_found")
        assert "TORCHLANE_DEFAULT_MODEL; there are: one, two" in answer.json()["error"]
        answer = await api.client.post("/models/one/predict", json={"input": [1, 2]})
        assert answer.json()["model"] == "one"
        models = (await api.client.get("/models")).json()["models"]
        assert [model["default"] for model in models] == [False, False]
    async with serving(tmp_path, default_model="two") as api:
        answer = await api.client.post("/predict", json={"input": [1, 2]})
        assert answer.json()["model"] == "two"
    with capture_logs() as logs:
        async with serving(tmp_path, default_model="tow") as api:
            answer = await api.client.post("/predict", json={"input": [1, 2]})
            ready = (await api.client.get("/health/ready")).json()
            await api.app.state.lifecycle.reload()  # does not log it again
    assert answer.status_code == 404
    assert "which TORCHLANE_DEFAULT_MODEL names; there are: one, two" in answer.json()["error"]
    warning = "TORCHLANE_DEFAULT_MODEL='tow': the repository has no such model; did you mean two?"
    assert ready == {"status": "ready", "reasons": [], "warnings": [warning]}
    assert [log["problem"] for log in logs if log["event"] == "default_model_missing"] == [warning]


ALTERED = "script.pt has 7 bytes"


@pytest.mark.parametrize(
    ("settings", "status", "reasons"),
    [
        ({}, 200, []),
        ({"required_models": "good", "default_model": "bad"}, 200, []),
        ({"required_models": "good, bad"}, 503, [ALTERED]),
        ({"required_models": "*"}, 503, [ALTERED]),
        ({"required_models": "absent"}, 503, ["the required model 'absent' is not in the repo"]),
    ],
)
async def test_a_damaged_model_leaves_other_models_ready(
    damaged: Path, settings: dict[str, Any], status: int, reasons: list[str]
) -> None:
    async with serving(damaged, wait_ready=False, **settings) as api:
        await settled(api)
        answer = await api.client.get("/health/ready")
        assert answer.status_code == status
        for shown, reason in zip(answer.json()["reasons"], reasons, strict=True):
            assert reason in shown
        assert await api.metric("torchlane_models_unready") == 1 + ("absent" in str(settings))
        answer = await api.client.post("/models/good/predict", json={"input": [1, 2]})
        assert answer.status_code == 200
        answer = await api.client.post("/models/bad/predict", json={"input": [1, 2]})
        assert (answer.status_code, answer.json()["code"]) == (503, "model_not_ready")
        assert ALTERED in answer.json()["error"]


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good model and a bad one."""
    folder = tmp_path_factory.mktemp("damaged")
    write_artifact(folder, "good")
    (write_artifact(folder, "bad") / "script.pt").write_bytes(b"damaged")
    return folder


async def test_errors_name_at_most_ten_models(tmp_path: Path) -> None:
    for number in range(12):
        (write_artifact(tmp_path, f"m{number:02}") / "script.pt").write_bytes(b"damaged")
    async with serving(tmp_path, wait_ready=False) as api:
        await settled(api)
        wrong = await api.client.post("/models/mine/predict", json={"input": [1, 2]})
        assert wrong.json()["error"].endswith("m08, m09 and 2 more")
        answer = await api.client.get("/health/ready")
        assert answer.status_code == 503
        *reasons, more = answer.json()["reasons"]
        assert len(reasons) == 10
        assert "'m00' could not be loaded" in reasons[0]
        assert more == "and 2 more"


async def test_small_models_are_loaded_first(tmp_path: Path) -> None:
    for name, size in (("a", 3 << 20), ("b", 0), ("c", 2 << 20), ("d", 1)):
        write_artifact(tmp_path, name, files={"extra.bin": bytes(size)})
    with capture_logs() as logs:
        async with serving(tmp_path):
            pass
    loaded = [each["model"] for each in logs if each["event"] == "model_loaded"]
    assert loaded == ["b/1", "d/1", "c/1", "a/1"]


async def test_a_server_is_announced_once_as_soon_as_its_required_models_work(
    tmp_path: Path,
) -> None:
    for name in ("quick", "slow"):
        write_artifact(tmp_path, name)
    go_on = threading.Event()
    hold = held(go_on)

    def make(artifact: Artifact, selection: Selection, device: Device) -> Backend:
        if artifact.id.name == "quick":
            return FakeBackend(lambda inputs: {"y": inputs["x"] * 2})
        return hold(artifact, selection, device)

    with capture_logs() as logs:
        async with serving(tmp_path, make_backend=make, required_models="quick") as api:
            said = [log for log in logs if log["event"] == "ready"]
            go_on.set()
            await settled(api)
            await asyncio.sleep(0.1)
            assert [log for log in logs if log["event"] == "ready"] == said
    (ready,) = said
    assert (ready["models"], ready["unready"]) == (["quick/1"], ["slow"])


async def test_a_failed_replica_is_reloaded_and_readiness_follows(double: Path) -> None:
    backends: list[FakeBackend] = []

    def make(artifact: Artifact, selection: Selection, device: Device) -> Backend:
        def script(inputs: Arrays) -> Arrays | None:
            if first and (inputs["x"] == 66).any():
                raise ReplicaError("the replica broke")
            return {"y": inputs["x"] * 2}

        first = not backends
        backends.append(FakeBackend(script))
        return backends[-1]

    async with serving(double, make_backend=make) as api:
        answer = await api.client.post("/predict", json={"input": [66, 0]})
        assert (answer.status_code, answer.json()["code"]) == (500, "backend_failed")
        assert (await api.client.get("/health/ready")).status_code == 503
        answer = await api.client.post("/predict", json={"input": [1, 0]})
        assert (answer.status_code, answer.json()["code"]) == (503, "model_not_ready")
        for name in ("torchlane_replica_ready", "torchlane_ready", "torchlane_model_replicas"):
            assert await api.metric(name) == 0
        async with asyncio.timeout(60):
            while (await api.client.get("/health/ready")).status_code != 200:
                await asyncio.sleep(0.05)
        answer = await api.client.post("/predict", json={"input": [66, 0]})
        assert answer.json()["prediction"]["outputs"]["y"] == [132, 0]
        assert "close" in backends[0].calls
        for name in ("torchlane_replica_ready", "torchlane_ready", "torchlane_model_replicas"):
            assert await api.metric(name) == 1


class FailsInBatches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 1:
            raise ValueError("a secret in /a/path")
        return x * 2


async def test_torch_error_messages_never_reach_clients(tmp_path: Path) -> None:
    write_artifact(tmp_path, "double", module=FailsInBatches())
    async with serving(tmp_path, wait_ready=False) as api:
        await settled(api)
        predicted = await api.client.post("/predict", json={"input": [1, 2]})
        answers = [predicted] + [await api.client.get(p) for p in ("/models", "/health/ready")]
        for answer in answers:
            assert "the log has the reason" in answer.text
            assert not any(word in answer.text for word in ("Traceback", "File", "secret", "/a/"))


def scripted(faults: Sequence[Exception | None]) -> tuple[BackendFactory, list[FakeBackend]]:
    """Backends of which the n-th fails at every run with the n-th fault; later ones work."""
    made: list[FakeBackend] = []

    def make(artifact: Artifact, selection: Selection, device: Device) -> Backend:
        fault = faults[len(made)] if len(made) < len(faults) else None

        def script(inputs: Arrays) -> Arrays | None:
            if fault is not None:
                raise fault
            return {"y": inputs["x"] * 2}

        made.append(FakeBackend(script))
        return made[-1]

    return make, made


async def test_a_failed_replica_load_keeps_the_version(tmp_path: Path) -> None:
    write_artifact(tmp_path, "double", version=1)
    write_artifact(tmp_path, "double", version=2)
    make, _ = scripted([ReplicaError("out of memory"), None])
    async with serving(tmp_path, make_backend=make, devices="cpu*2") as api:
        info = (await api.client.get("/models/double?full=true")).json()
        assert info["version"] == 2  # not the older one
        assert sorted(replica["state"] for replica in info["replicas"]) == ["loading", "ready"]
        async with asyncio.timeout(60):
            while any(each["state"] != "ready" for each in info["replicas"]):
                await asyncio.sleep(0.05)
                info = (await api.client.get("/models/double?full=true")).json()


async def test_a_close_error_does_not_hide_the_problem(tmp_path: Path) -> None:
    class Stubborn(FakeBackend):
        def close(self) -> None:
            super().close()
            raise RuntimeError("the device is gone")

    write_artifact(tmp_path, "alpha", expected=[{"y": np.array([0.0, 0.0], np.float32)}])
    write_artifact(tmp_path, "beta")
    made: list[FakeBackend] = []

    def make(artifact: Artifact, selection: Selection, device: Device) -> Backend:
        made.append(Stubborn(lambda inputs: {"y": inputs["x"] * 2}))
        return made[-1]

    async with serving(tmp_path, make_backend=make, wait_ready=False) as api:
        await settled(api)
        states = {m["name"]: m for m in (await api.client.get("/models")).json()["models"]}
        assert "golden" in states["alpha"]["versions"][0]["problem"]
        assert states["beta"]["state"] == "ready"
    assert all("close" in backend.calls for backend in made)


async def test_an_in_process_timeout_counts_as_abandoned(double: Path) -> None:
    make, made = scripted([])
    async with serving(double, make_backend=make) as api:
        made[0].gate.clear()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(api.client.post("/predict", json={"input": [5, 5]}), 0.2)
        made[0].gate.set()
        name = "torchlane_requests_total"
        assert await api.metric(name, status="499", code="abandoned") == 1
        assert await api.metric(name) == 1


async def test_a_device_lost_during_loading_ends_the_process(
    double: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr("os._exit", ended.append)
    monkeypatch.setattr("app.processes.serving_process.DEVICE_LOST_GRACE_S", 0.0)
    make, _ = scripted([DeviceLost("sticky")])
    async with serving(double, make_backend=make, wait_ready=False) as api:
        async with asyncio.timeout(60):
            while not ended:
                await asyncio.sleep(0.01)
        assert (await api.client.get("/health/ready")).status_code == 503
    assert ended == [70]


async def test_an_unreadable_repository_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "models").symlink_to("x" * 300)
    with capture_logs() as logs:
        async with serving(tmp_path / "models", wait_ready=False, reload_s=0.01) as api:
            async with asyncio.timeout(60):
                while "cannot be read" not in (await api.client.get("/health/ready")).text:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
    events = [log["event"] for log in logs]
    assert (events.count("repository_unreadable"), events.count("look_failed")) == (1, 0)


async def test_unknown_errors_are_hidden_and_logged_once(double: Path) -> None:
    async with serving(double) as api:

        async def broken() -> None:
            raise RuntimeError("secret /etc/shadow")

        api.app.add_api_route("/broken", broken)
        with capture_logs() as logs:
            answer = await api.client.get("/broken", headers={"x-request-id": "find-me"})
        assert (answer.status_code, answer.json()["code"]) == (500, "internal")
        assert "secret" not in answer.text
        assert answer.headers["x-request-id"] == "find-me"
    events = [(log["event"], log["request_id"]) for log in logs]
    assert events == [("unhandled_error", "find-me"), ("request", "find-me")]


SECRET = "too large: /a/secret/path"  # what the model says


@pytest.mark.parametrize("shows", [False, True])
async def test_model_failures_are_logged_with_request_ids(double: Path, shows: bool) -> None:
    async with listening(double, show_model_errors=shows) as server:
        with capture_logs() as logs:
            one = await server.ask(request(body=b'{"input": [500, 0]}', x_request_id="one"))
            body = b'{"inputs": [[1, 2], [600, 0]]}'
            many = await server.ask(request("/batch-predict", body, x_request_id="many"))
    failed = [each for each in logs if each["event"] == "model_failed"]
    assert [each["request_ids"] for each in failed] == [["one"], ["many"]]
    assert all(SECRET in each["first"] for each in failed)
    assert (one.status, one.code, many.status) == (500, "backend_failed", 200)
    place = many.json()["predictions"][1]
    assert (place["error"], place["code"]) == ("the model failed on this item", "backend_failed")
    for shown in (one.json()["details"], place.get("details", [])):
        assert [SECRET in each["model_error"] for each in shown] == [True] * shows
    assert (SECRET.encode() in one.body + many.body) is shows
