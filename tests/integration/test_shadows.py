"""Another version computes copies of what the served one has computed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs
from torch import nn

from app.access.entries import ADMIN, PREDICT, make_key
from app.api.openapi import schemas
from app.serving.releases import shadows
from tests.artifacts import write_artifact
from tests.integration.harness import Api, serving


class Tripled(nn.Module):
    """Doubles numbers below 10, and triples the others."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x < 10, x * 2, x * 3)


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadows, "LOOK_S", 0.01)


@asynccontextmanager
async def shadowing(
    folder: Path, versions: str = "latest:2", keep: int = 0, **settings: Any
) -> AsyncIterator[tuple[Api, Path]]:
    """Version 2 serves, and version 3, which differs from 10 on, is its shadow."""
    write_artifact(folder / "models", "m", 2)
    write_artifact(folder / "models", "m", 3, module=Tripled())
    file = folder / "models.toml"
    write_file(file, keep)
    async with serving(
        folder / "models", versions=versions, models_file=file, reload_s=0.05, **settings
    ) as api:
        await asyncio.sleep(0.1)  # it has looked
        yield api, file


def write_file(file: Path, keep: int) -> None:
    shadow = f"{{ version = 3, share = 1.0, keep = {keep} }}"
    file.write_text(f"[models.m]\nweights = {{ 2 = 1 }}\nshadow = {shadow}\n")


async def ask(api: Api, *items: int) -> None:
    inputs = [[item, 1] for item in items]
    answer = (await api.client.post("/batch-predict", json={"inputs": inputs})).json()
    assert answer["version"] == 2
    outputs = [each["outputs"]["y"] for each in answer["predictions"]]
    assert outputs == [[2 * item, 2] for item in items]


async def copied(api: Api, **labels: str) -> float:
    return await api.metric("torchlane_shadow_items_total", model="m", version="3", **labels)


async def until_copied(api: Api, number: int) -> None:
    async with asyncio.timeout(20):
        while await copied(api) < number:
            await asyncio.sleep(0.01)


async def test_answers_are_compared(tmp_path: Path) -> None:
    async with shadowing(tmp_path) as (api, file):
        await ask(api, 1, 2, 12)
        await until_copied(api, 3)
        assert (await copied(api, result="agrees"), await copied(api, result="differs")) == (2, 1)
        assert await api.metric("torchlane_items_total", version="3", outcome="ok") == 3
        assert await api.metric("torchlane_model_requests_total", version="3") == 0  # copies
        await ask(api, 1, 12)  # from the cache: they were compared before
        shadow = (await api.client.get("/models/m")).json()["shadow"]
        figures = {"compared": 3, "agreement": 0.6667}
        assert shadow == {"version": 3, "share": 1.0, "problem": None, **figures}
        file.write_text("[models.m]\nweights = { 2 = 1 }\n")
        async with asyncio.timeout(20):
            while (await api.client.get("/models/m")).json()["shadow"] is not None:
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.1)
        await ask(api, 3, 4)
        await asyncio.sleep(0.1)
        assert await copied(api) == 3


async def test_copies_are_dropped_under_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadows, "MOST_ITEMS", 2)
    async with shadowing(tmp_path) as (api, _):
        await ask(api, *range(5))
        await until_copied(api, 5)
        assert await copied(api, result="dropped") == 3
        assert await copied(api, result="agrees") == 2


async def test_a_shadow_that_computes_nothing_says_why(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with shadowing(tmp_path, versions="m=2") as (api, _):
            shadow = (await api.client.get("/models/m")).json()["shadow"]
            assert shadow["problem"].startswith("version 3 is not served; TORCHLANE_VERSIONS")
            await ask(api, 1)
            await asyncio.sleep(0.1)
            assert await copied(api) == 0
    assert [log["problem"] for log in logs if log["event"] == "shadow_idle"] == [shadow["problem"]]


async def test_inputs_with_different_answers_are_kept(tmp_path: Path) -> None:
    secrets, entries = zip(
        *(make_key(each, [each, PREDICT]) for each in (ADMIN, PREDICT)), strict=True
    )
    admin, predict = ({"x-api-key": secret} for secret in secrets)
    settings: dict[str, Any] = {"keep": 2, "api_keys": ";".join(entries), "open_metrics": True}
    async with shadowing(tmp_path, **settings) as (api, file):
        api.client.headers.update(predict)
        await ask(api, 1, 11, 12, 13)
        await until_copied(api, 4)
        assert (await api.client.get("/models/m/shadow")).status_code == 403
        api.client.headers.update(admin)
        answer = await api.client.get("/models/m/shadow")
        assert answer.headers["cache-control"] == "no-store"
        kept = answer.json()
        assert schemas.ShadowInputs.model_validate(kept).differing
        assert (kept["version"], kept["share"], kept["keep"]) == (3, 1.0, 2)
        assert [each["request"]["inputs"][0]["data"] for each in kept["differing"]] == [
            [13, 1],
            [12, 1],
        ]
        newest = kept["differing"][0]
        assert (newest["result"], newest["version"]) == ("differs", 2)
        sent = await api.client.post("/models/m/predict", json={"input": [13, 1]})
        assert newest["prediction"] == sent.json()["prediction"]
        again = await api.client.post("/v2/models/m/versions/3/infer", json=newest["request"])
        outputs = newest["shadow_prediction"]["outputs"]
        assert again.json()["outputs"][0]["data"] == outputs["y"] == [39, 2]
        write_file(file, keep=3)  # another setting: what was kept under the last one is dropped
        async with asyncio.timeout(20):
            while (await api.client.get("/models/m/shadow")).json()["keep"] == 2:
                await asyncio.sleep(0.05)
        assert (await api.client.get("/models/m/shadow")).json()["differing"] == []


async def test_nothing_is_kept_unless_the_file_says_so(tmp_path: Path) -> None:
    secret, entry = make_key("root", [ADMIN, PREDICT])
    async with shadowing(tmp_path, api_keys=entry, open_metrics=True) as (api, file):
        api.client.headers["x-api-key"] = secret
        await ask(api, 12)
        await until_copied(api, 1)
        kept = (await api.client.get("/models/m/shadow")).json()
        assert (kept["keep"], kept["differing"]) == (0, [])
        assert (await api.client.get("/models/m/shadow?full=true")).status_code == 400
        file.write_text("[models.m]\nweights = { 2 = 1 }\n")
        async with asyncio.timeout(20):
            while (await api.client.get("/models/m/shadow")).status_code == 200:
                await asyncio.sleep(0.05)
        answer = await api.client.get("/models/m/shadow")
        assert (answer.status_code, answer.json()["code"]) == (404, "model_not_found")
