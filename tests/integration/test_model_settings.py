"""Settings of single models: what applies at once, what reinstalls a version, without errors."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs

from app.access.entries import make_key
from app.serving.lifecycle import Lifecycle
from models.choices import Precision
from models.plan import Plan, Step
from tests.artifacts import small_batch, write_artifact, write_small
from tests.integration.harness import Api, serving, settled
from tests.integration.listening import Doubles, listening
from tests.integration.small import HERE, answers, item
from tests.integration.wire import ask_for, request
from tests.unit.models.manifests import form, make_plan, steps

SECRET, LINE = make_key("team-a", ["predict"])
OTHER, OTHER_LINE = make_key("team-b", ["predict"])


def plan_to(most: int) -> Plan:
    """Of int8 and float32, as export measures it with --max-batch-size."""
    made: dict[Precision, tuple[Step, ...]] = {
        "float32": steps((most, form("script"))),
        "int8": steps((most, form("int8"))),
    }
    return make_plan(made, HERE, precision="float32", torch_version=torch.__version__)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "models.toml").touch()
    return tmp_path / "models.toml"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    write_small(tmp_path / "models", ["script", "int8"], plan=plan_to(8))
    return tmp_path / "models"


def write(file: Path, *lines: str) -> Path:
    file.write_text("\n".join(lines))
    return file


async def edit(api: Api, file: Path, text: str) -> None:
    """Change the file, and have the server look."""
    write(file, text)
    lifecycle: Lifecycle = api.app.state.lifecycle
    await lifecycle.reload()


async def shown(api: Api, name: str = "small") -> dict[str, Any]:
    found: dict[str, Any] = (await api.client.get(f"/models/{name}?full=true")).json()
    return found


@contextlib.asynccontextmanager
async def asked_meanwhile(api: Api) -> AsyncIterator[list[int]]:
    """Four callers without a pause; yields the statuses of their answers."""
    statuses: list[int] = []
    going = True

    async def call(seed: int) -> None:
        batch = small_batch(1000, seed)
        for row in range(1000):
            answer = await api.client.post("/predict", json={"input": item(batch, row)})
            statuses.append(answer.status_code)
            if not going:
                return

    callers = [asyncio.create_task(call(seed)) for seed in range(4)]
    try:
        yield statuses
    finally:
        going = False
        await asyncio.gather(*callers)


async def test_the_plan_limits_the_largest_batch(small: Path) -> None:
    with capture_logs() as logs:
        async with serving(small) as api:
            found = await shown(api)
            assert found["settings"]["max_batch_size"] == 8
            assert found["replicas"][0]["plan"]["measured_by"] == "export"
    assert "plan_not_used" not in [log["event"] for log in logs]
    async with serving(small, max_batch_size=4) as api:
        assert (await shown(api))["settings"]["max_batch_size"] == 4


async def test_settings_without_a_load_apply_immediately(small: Path, file: Path) -> None:
    async with serving(small, models_file=file, reload_s=0) as api:
        with capture_logs() as logs:
            await edit(
                api,
                file,
                "[models.small]\nbatch_wait_ms = 1\nqueue_limit_items = 3\n"
                "queue_limit_bytes = '1MiB'\ntimeout_ms = 2000\ncache = false\n",
            )
        assert [log["event"] for log in logs] == ["models_file_taken", "model_settings_changed"]
        found = (await shown(api))["settings"]
        assert (found["batch_wait_ms"], found["timeout_ms"], found["cache"]) == (1, 2000, False)
        assert await api.metric("torchlane_queue_limit_items") == 3
        assert await api.metric("torchlane_queue_limit_bytes") == 1 << 20
        batch = small_batch(4, seed=1)
        for _ in range(3):
            answer = await api.client.post("/predict", json={"input": item(batch, 0)})
            assert answer.headers["x-torchlane-cache"] == "miss"
        many = {"inputs": [item(batch, row) for row in range(4)]}
        assert (await api.client.post("/batch-predict", json=many)).status_code == 413
        await edit(api, file, "# none\n")
        for found_in in ("miss", "hit"):
            answer = await api.client.post("/predict", json={"input": item(batch, 0)})
            assert answer.headers["x-torchlane-cache"] == found_in
        assert (await api.client.post("/batch-predict", json=many)).status_code == 200


async def test_a_model_can_have_its_own_timeout(tmp_path: Path, file: Path) -> None:
    write_artifact(tmp_path / "models", "double")
    write(file, "[models.double]\ntimeout_ms = 50\n")
    doubles = Doubles()
    async with listening(tmp_path / "models", make_backend=doubles, models_file=file) as server:
        doubles.hold()
        for headers in ({}, {"x_torchlane_timeout_ms": "10000"}):  # it is the most, too
            assert (await server.ask(ask_for(3, **headers))).status in {503, 504}
        doubles.go_on()


async def test_settings_with_a_load_fail_no_request(small: Path, file: Path) -> None:
    async with serving(small, models_file=file, reload_s=0, devices="cpu*2") as api:
        async with asked_meanwhile(api) as statuses:
            for text, most, precision in (
                ("max_batch_size = 4", 4, "float32"),
                ("precision = 'int8'", 8, "int8"),
                ("variant = 'script'\nreplicas = 1", 8, "float32"),
                ("devices = 'cpu'\nreplicas = 2", 8, "float32"),
            ):
                await edit(api, file, f"[models.small]\n{text}\n")
                found = await shown(api)
                assert found["settings"]["max_batch_size"] == most
                assert found["precision"] == precision
                assert [each["state"] for each in found["versions"]] == ["ready"]
                assert found["versions"][0]["problem"] is None
                replicas = 1 if "replicas = 1" in text else 2
                assert [each["state"] for each in found["replicas"]] == ["ready"] * replicas
                assert await api.metric("torchlane_model_replicas") == replicas
        assert set(statuses) == {200}
        assert len(statuses) > 20
        batch = small_batch(3)
        int8 = await asked_in(api, file, "int8", batch)
        float32 = await asked_in(api, file, "float32", batch)
        assert np.abs(int8 - float32).max() > 0  # no answer of the other precision is in the cache


async def asked_in(api: Api, file: Path, precision: str, batch: Any) -> Any:
    await edit(api, file, f"[models.small]\nprecision = '{precision}'\n")
    return await answers(api, batch)


async def test_a_setting_that_cannot_apply_is_reported(small: Path, file: Path) -> None:
    async with serving(small, models_file=file, reload_s=0) as api:
        for _ in range(2):  # the second time it is not tried again, and told all the same
            with capture_logs() as logs:
                await edit(api, file, "[models.small]\nvariant = 'bf16'\ntimeout_ms = 5000\n")
            found = await shown(api)
            (version,) = found["versions"]
            assert version["state"] == "ready"
            assert "it keeps serving with its earlier settings" in version["problem"]
            assert "no variant 'bf16' (`variant` in the models file)" in version["problem"]
            assert found["settings"]["variant"] is None
            assert found["settings"]["timeout_ms"] == 5000  # that took no load
        assert "model_settings_not_applied" in [log["event"] for log in logs]
        assert (await api.client.get("/health/ready")).status_code == 200
        await edit(api, file, "# none\n")
        assert (await shown(api))["versions"][0]["problem"] is None


async def test_models_in_the_file_are_required_by_default(small: Path, file: Path) -> None:
    write(file, "[models.small]\n[models.later]\n")
    async with serving(small, models_file=file, reload_s=0, wait_ready=False) as api:
        await settled(api)
        reasons = (await api.client.get("/health/ready")).json()["reasons"]
        assert reasons == ["the required model 'later' is not in the repository"]
        assert (await shown(api))["settings"]["required"] is True
        await edit(api, file, "[models.small]\n[models.later]\nrequired = false\n")
        assert (await api.client.get("/health/ready")).status_code == 200
        await edit(api, file, "[models.small]\n[models.later]\n")
        assert (await api.client.get("/health/ready")).status_code == 503
        write_artifact(small, "later")
        await edit(api, file, "[models.later]\n")
        assert (await api.client.get("/health/ready")).status_code == 200
    async with serving(small, models_file=file, required_models="small") as api:
        assert (await api.client.get("/health/ready")).status_code == 200


async def test_only_allowed_keys_may_call_a_model(tmp_path: Path) -> None:
    for name in ("open", "closed"):
        write_artifact(tmp_path / "models", name)
    (tmp_path / "file").write_text("[models.closed]\nallowed_keys = ['team-a']\n")
    settings: dict[str, Any] = {
        "models_file": tmp_path / "file",
        "api_keys": f"{LINE};{OTHER_LINE}",
    }
    async with listening(tmp_path / "models", **settings) as server:
        for name, secret, status in (
            ("open", SECRET, 200),
            ("open", OTHER, 200),
            ("closed", SECRET, 200),
            ("closed", OTHER, 403),
        ):
            path = f"/models/{name}/predict"
            answer = await server.ask(request(path, x_api_key=secret))
            assert answer.status == status
        assert answer.code == "forbidden"
        assert "'team-b' may not call the model 'closed'" in answer.json()["error"]
        assert await server.metric("torchlane_key_requests_total", result="forbidden") == 1
