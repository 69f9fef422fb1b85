"""Releases in steps, by the whole server: good versions reach all users, bad ones go back."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from app.access.entries import ADMIN, PREDICT, make_key
from app.backends.fake import FakeBackend
from app.errors import ModelError
from app.serving.releases import steps as releases
from tests.handlers import asks, write_handler
from tests.integration.harness import Api, serving, settled
from tests.integration.publishing import Publisher, answered_by, eventually, lifecycle

HANDLER = """
import torchlane

class H(torchlane.Handler):
    async def predict(self, request):
        number = request.json()
        assert number < LIMIT
        return number
"""
pytestmark = pytest.mark.asyncio(loop_scope="module")
SECRET, KEY = make_key("root", [ADMIN, PREDICT])
HEADERS = {"x-api-key": SECRET}
MIN = "min_requests = 10"


def backend(*, fails: bool, slow_s: float) -> Any:
    """Makes backends, of which only version 3 is bad."""

    def make(artifact: Any, *_: object) -> FakeBackend:
        version = artifact.manifest.version

        def forward(inputs: Any) -> Any:
            if version == 3 and fails and np.any(inputs["x"] > 100):  # its examples are right
                raise ModelError("bad weights")
            time.sleep(slow_s if version == 3 else 0.002)
            return {"y": inputs["x"] * version}

        return FakeBackend(forward)

    return make


@contextlib.asynccontextmanager
async def released(
    root: Path,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    fails: bool = False,
    slow_s: float = 0.002,
) -> AsyncIterator[Api]:
    """A server that releases version 3 of `m`."""
    monkeypatch.setattr(releases.Releases.follow, "__defaults__", (0.05,))
    publisher = Publisher(root)
    for version in (2, 3):
        publisher.publish(version)
    file = root / "models.toml"
    file.write_text(f"[models.m]\nrelease = {text}\n")
    async with serving(
        publisher.repository,
        make_backend=backend(fails=fails, slow_s=slow_s),
        models_file=file,
        versions="all",
        default_model="m",
        reload_s=0,
        api_keys=KEY,
        cache_bytes=0,
        open_metrics=True,
        wait_ready=False,
    ) as api:
        api.client.headers.update(HEADERS)
        await eventually(lambda: ready(api), 200)
        yield api


async def ready(api: Api) -> int:
    return (await api.client.get("/health/ready")).status_code


async def release(api: Api) -> dict[str, Any]:
    found: dict[str, Any] = (await api.client.get("/models/m")).json()["release"]
    return found


async def state(api: Api) -> str:
    return str((await release(api))["state"])


async def share(api: Api) -> float:
    return float((await release(api))["percent"])


@contextlib.asynccontextmanager
async def traffic(api: Api) -> AsyncIterator[list[int]]:
    """Requests without a version until the block ends; the statuses of their answers."""
    statuses: list[int] = []

    async def ask() -> None:
        number = 1000.0
        while True:
            number += 1
            answer = await api.client.post("/predict", json={"input": [number, 0]})
            statuses.append(answer.status_code)

    tasks = [asyncio.create_task(ask()) for _ in range(2)]
    try:
        yield statuses
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_good_version_reaches_everyone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "{ to = 3, steps = [20, 60, 100], every_s = 0.3 }"
    async with released(tmp_path, text, monkeypatch) as api:
        async with traffic(api) as statuses:
            await eventually(lambda: state(api), "completed")
        assert set(statuses) == {200}
        assert {await answered_by(api, x=float(number)) for number in range(20)} == {3}
        assert await api.metric("torchlane_release_share", model="m", version="3") == 1
        found = await release(api)
        assert (found["to"], found["old"], found["step"], found["percent"]) == (3, 2, 3, 100)


async def test_a_version_that_fails_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"{{ to = 3, steps = [50, 100], every_s = 600, stop_if = {{ {MIN} }} }}"
    async with released(tmp_path, text, monkeypatch, fails=True) as api:
        async with traffic(api) as statuses:
            await eventually(lambda: state(api), "rolled_back")
            assert 500 in statuses
        assert "failed, more than errors_above" in (await release(api))["reason"]
        assert {await answered_by(api, x=float(number)) for number in range(20)} == {2}
        assert await api.metric("torchlane_release_rolled_back", model="m", version="3") == 1


async def test_a_slow_version_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = f"{{ latency_above = 2, {MIN} }}"
    text = f"{{ to = 3, steps = [50, 100], every_s = 600, stop_if = {rules} }}"
    async with released(tmp_path, text, monkeypatch, slow_s=0.05) as api:
        async with traffic(api):
            await eventually(lambda: state(api), "rolled_back")
        assert "latency_above = 2" in (await release(api))["reason"]


async def test_a_handler_that_fails_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases.Releases.follow, "__defaults__", (0.05,))
    for version, limit in ((2, 1e9), (3, 100)):
        source = HANDLER.replace("LIMIT", str(limit))
        write_handler(tmp_path / "models", "m", version, source, [asks(1, 1)], entry="h:H")
    file = tmp_path / "models.toml"
    rules = f"{{ to = 3, steps = [50, 100], stop_if = {{ {MIN} }} }}"
    file.write_text(f"[models.m]\nrelease = {rules}\n")
    settings: dict[str, Any] = {"models_file": file, "versions": "all", "handlers": "on"}
    async with serving(tmp_path / "models", **settings) as api:
        await eventually(lambda: share(api), 50)
        codes: set[int] = set()
        for number in range(1000, 10_000):
            if await state(api) != "running":
                break
            answer = await api.client.post("/models/m/predict", json=number)
            codes.add(answer.status_code)
        assert await state(api) == "rolled_back"
        assert codes == {200, 500}


async def test_users_keep_the_new_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "{ to = 3, steps = [10, 50, 90, 100], every_s = 0.5 }"
    async with released(tmp_path, text, monkeypatch) as api:
        before = [2] * 40
        for percent in (10, 50, 90, 100):
            await eventually(lambda: share(api), percent)
            await api.client.post("/admin/models/m/release/pause")
            now = [await answered_by(api, x=float(number)) for number in range(40)]
            assert all(old <= new for old, new in zip(before, now, strict=True))
            before = now
            await api.client.post("/admin/models/m/release/resume")
        assert set(before) == {3}


async def test_an_administrator_rolls_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with released(tmp_path, "{ to = 3, steps = [50, 100] }", monkeypatch) as api:
        await eventually(lambda: share(api), 50)
        path = "/admin/models/m/release"
        assert (await api.client.post(f"{path}/pause")).json()["state"] == "paused"
        answer = await api.client.post(f"{path}/rollback")
        assert answer.json()["reason"] == "an administrator asked for it"
        assert await answered_by(api) == 2
        answer = await api.client.post(f"{path}/pause")
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input")
        assert (await api.client.post("/admin/models/x/release/pause")).status_code == 404
        del api.client.headers["x-api-key"]
        assert (await api.client.post(f"{path}/resume")).status_code == 401


async def test_the_file_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "models.toml"
    async with released(tmp_path, "{ to = 3, steps = [50, 100] }", monkeypatch) as api:
        await eventually(lambda: share(api), 50)
        file.write_text("[models.m]\nrelease = { to = 4 }\n")
        await lifecycle(api).reload()
        await eventually(lambda: state(api), "waiting")
        assert "version 4 is not served" in (await release(api))["problem"]
        assert {await answered_by(api, x=float(number)) for number in range(20)} == {2}
        file.write_text("[models.m]\nweights = { 2 = 1 }\n")
        await lifecycle(api).reload()
        await eventually(lambda: release(api), None)
        assert {await answered_by(api, x=float(number)) for number in range(20)} == {2}


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("release = { to = 3 }", "m/2"),  # the server may be ready with one version
        ("weights = { 2 = 9, 3 = 1 }", "m/2"),
        ("weights = { 2 = 1, 3 = 9 }", "m/3"),
    ],
)
async def test_the_version_with_the_largest_share_is_loaded_first(
    tmp_path: Path, text: str, first: str
) -> None:
    publisher = Publisher(tmp_path)
    for version in (2, 3):
        publisher.publish(version)
    (tmp_path / "models.toml").write_text(f"[models.m]\n{text}\n")
    settings: dict[str, Any] = {"models_file": tmp_path / "models.toml", "versions": "all"}
    with capture_logs() as logs:
        async with serving(publisher.repository, **settings) as api:
            await settled(api)
    loaded = [log["model"] for log in logs if log["event"] == "model_loaded"]
    assert (loaded[0], len(loaded)) == (first, 2)


async def test_a_version_that_is_installed_again_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "{ to = 3, steps = [20, 100], every_s = 0.5 }"
    async with released(tmp_path, text, monkeypatch) as api:
        (tmp_path / "models.toml").write_text(f"[models.m]\nmax_batch_size = 8\nrelease = {text}\n")
        changes = await lifecycle(api).reload()
        assert {each.version for each in changes.loaded} == {2, 3}
        await eventually(lambda: state(api), "completed")


async def test_a_version_that_is_published_later_gets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases.Releases.follow, "__defaults__", (0.05,))
    publisher = Publisher(tmp_path)
    for version in (2, 3):
        publisher.publish(version)
    file = tmp_path / "models.toml"
    file.write_text("[models.m]\nrelease = { to = 3, steps = [20, 100], every_s = 600 }\n")
    settings: dict[str, Any] = {
        "make_backend": backend(fails=False, slow_s=0.0),
        "models_file": file,
        "versions": "latest:2",
        "default_model": "m",
        "reload_s": 0,
    }
    async with serving(publisher.repository, **settings) as api:
        await eventually(lambda: share(api), 20.0)
        publisher.publish(4)
        await lifecycle(api).reload()
        versions = {await answered_by(api, x=float(number)) for number in range(40)}
        assert versions == {2, 3}


async def test_a_version_of_another_kind_gets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases.Releases.follow, "__defaults__", (0.05,))
    publisher = Publisher(tmp_path)
    publisher.publish(2)
    source = HANDLER.replace("LIMIT", "100")
    write_handler(publisher.repository, "m", 3, source, [asks(1, 1)], entry="h:H")
    file = tmp_path / "models.toml"
    file.write_text("[models.m]\nrelease = { to = 3 }\n")
    settings: dict[str, Any] = {"versions": "all", "default_model": "m", "models_file": file}
    async with serving(publisher.repository, handlers="on", **settings) as api:
        await settled(api)
        assert {await answered_by(api, x=float(number)) for number in range(9)} == {2}
        assert "version 3 is a handler and the others are models" in (await release(api))["problem"]
