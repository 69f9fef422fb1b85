"""Models that are loaded when a request needs them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from structlog.testing import capture_logs
from torch import nn

from app.access.entries import ADMIN, METRICS, PREDICT, make_key
from app.backends.fake import FakeBackend
from app.serving.residency import on_demand
from app.serving.residency.model_memory import ModelMemory
from tests.artifacts import write_artifact
from tests.integration.harness import Api, held, serving

ON_DEMAND: dict[str, Any] = {"load": "on-demand", "cache_bytes": 0}


class Heavy(nn.Module):
    """Doubles its input; has 2 MiB of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(2, 1 << 18))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 + (x @ self.weights).sum(1, keepdim=True)


@pytest.fixture
def _only_files_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of the test's own process would."""
    monkeypatch.setattr(ModelMemory, "grown", lambda *_: 0)


def heavy(folder: Path, *names: str) -> Path:
    for name in names:
        write_artifact(folder, name, module=Heavy())
    return folder


async def ask(api: Api, name: str, item: int = 1, timeout_ms: int = 20_000) -> httpx.Response:
    headers = {"X-Torchlane-Timeout-Ms": str(timeout_ms)}
    return await api.client.post(
        f"/models/{name}/predict", json={"input": [item, 2]}, headers=headers
    )


async def states(api: Api) -> dict[str, str]:
    models = (await api.client.get("/models")).json()["models"]
    return {model["name"]: model["state"] for model in models}


async def residency(api: Api, name: str) -> tuple[Any, Any]:
    (version,) = (await api.client.get(f"/models/{name}")).json()["versions"]
    return version["memory_bytes"], version["idle_s"]


async def until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not await true():
            await asyncio.sleep(0.01)


async def test_the_first_requests_load_a_model_once(tmp_path: Path) -> None:
    heavy(tmp_path, "one", "other")
    async with serving(tmp_path, **ON_DEMAND) as api:
        assert await states(api) == {"one": "cold", "other": "cold"}
        assert await residency(api, "one") == (None, None)
        described = (await api.client.get("/models/one?full=true")).json()
        assert described["inputs"][0]["name"] == "x"
        assert [replica["state"] for replica in described["replicas"]] == ["cold"]
        ready = await api.client.get("/v2/models/one/ready")
        assert ready.status_code == 503
        answers = await asyncio.gather(*(ask(api, "one", item) for item in range(5)))
        outputs = [each.json()["prediction"]["outputs"]["y"] for each in answers]
        assert outputs == [[2 * item, 4] for item in range(5)]
        assert await api.metric("torchlane_model_loads_total", result="warmed") == 1
        assert await states(api) == {"one": "ready", "other": "cold"}
        memory_bytes, idle_s = await residency(api, "one")
        assert 2 << 20 < memory_bytes < 64 << 20
        assert 0 <= idle_s < 60
        assert (await api.client.get("/v2/models/one/ready")).status_code == 200
        assert await api.metric("torchlane_model_cold") == 1
        infer = {
            "inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}],
        }
        answer = await api.client.post("/v2/models/other/infer", json=infer)
        assert answer.json()["outputs"][0]["data"] == [2, 4]
        assert set((await states(api)).values()) == {"ready"}


@pytest.mark.usefixtures("_only_files_count")
async def test_a_model_leaves_for_another(tmp_path: Path) -> None:
    heavy(tmp_path, "one", "other", "third")
    # A file is a little longer than its weights.
    settings = ON_DEMAND | {"model_memory": 5 << 20, "min_resident_s": 0}
    async with serving(tmp_path, **settings) as api:
        for name in ("one", "one", "one", "other", "third", "one"):
            assert (await ask(api, name)).status_code == 200
        # `one` is used most, so `other` had to go for `third`.
        assert await states(api) == {"one": "ready", "other": "cold", "third": "ready"}
        assert await api.metric("torchlane_model_loads_total", result="cooled") == 1
        assert 4 << 20 < await api.metric("torchlane_model_memory_bytes") <= 5 << 20
        assert (await ask(api, "other")).json()["prediction"]["outputs"]["y"] == [2, 4]


@pytest.mark.usefixtures("_only_files_count")
async def test_the_surplus_is_refused(tmp_path: Path) -> None:
    heavy(tmp_path, "one", "other")
    settings = ON_DEMAND | {"model_memory": 3 << 20, "min_resident_s": 60}
    async with serving(tmp_path, **settings) as api:
        assert (await ask(api, "one")).status_code == 200
        for _ in range(2):
            answer = await ask(api, "other")
            assert (answer.status_code, answer.json()["code"]) == (503, "overloaded")
            assert "no room for model other/1 now" in answer.json()["error"]
            assert 50 < int(answer.headers["Retry-After"]) <= 60
        assert await states(api) == {"one": "ready", "other": "cold"}
        assert await api.metric("torchlane_cold_refused_total") == 2
    async with serving(tmp_path, **ON_DEMAND, model_memory=1 << 20) as api:
        answer = await ask(api, "one")
        assert (answer.status_code, answer.json()["code"]) == (503, "model_not_ready")
        assert "takes at least 2 MiB" in answer.json()["error"]


@pytest.mark.usefixtures("_only_files_count")
async def test_a_later_load_measures_nothing_again(tmp_path: Path) -> None:
    heavy(tmp_path, "one", "other")
    backends: list[FakeBackend] = []

    def make(*_: object) -> FakeBackend:
        backends.append(FakeBackend(lambda inputs: {"y": inputs["x"] * 2}))
        return backends[-1]

    settings = ON_DEMAND | {"model_memory": 3 << 20, "min_resident_s": 0}
    async with serving(tmp_path, make_backend=make, **settings) as api:
        for name in ("one", "other", "one"):
            assert (await ask(api, name)).status_code == 200
        first, _, again = (len(backend.batches) for backend in backends)
        assert again < first / 2
        assert backends[0].calls[-1] == "close"


async def test_cached_answers_need_no_model(tmp_path: Path) -> None:
    heavy(tmp_path, "one")
    file = tmp_path / "models.toml"
    file.write_text('[models.one]\nload = "on-demand"\nidle_s = 0.2\n')
    async with serving(tmp_path, models_file=file, min_resident_s=0) as api:
        assert (await ask(api, "one")).status_code == 200

        async def is_cold() -> bool:
            return await states(api) == {"one": "cold"}

        await until(is_cold)
        assert (await ask(api, "one")).json()["prediction"]["outputs"]["y"] == [2, 4]
        assert await states(api) == {"one": "cold"}
        assert (await ask(api, "one", 5)).json()["prediction"]["outputs"]["y"] == [10, 4]


async def test_a_deadline_shorter_than_a_load(tmp_path: Path) -> None:
    heavy(tmp_path, "one", "other")
    go_on = threading.Event()
    settings = ON_DEMAND | {"min_resident_s": 0, "model_memory": 3 << 20}
    async with serving(tmp_path, make_backend=held(go_on), **settings) as api:
        late = await ask(api, "one", timeout_ms=200)  # nothing is known of its load
        assert (late.status_code, late.json()["code"]) == (504, "deadline_exceeded")
        go_on.set()

        async def is_ready() -> bool:
            return (await states(api))["one"] == "ready"

        await until(is_ready)
        assert (await ask(api, "other")).status_code == 200  # `one` leaves
        go_on.clear()
        refused = await ask(api, "one", timeout_ms=50)
        assert (refused.status_code, refused.json()["code"]) == (503, "overloaded")
        assert "is being loaded, which will take about" in refused.json()["error"]
        assert int(refused.headers["Retry-After"]) >= 1
        go_on.set()
        assert (await ask(api, "one")).status_code == 200


async def test_a_request_that_is_refused_loads_nothing(tmp_path: Path) -> None:
    heavy(tmp_path, "one", "other")
    file = tmp_path / "models.toml"
    file.write_text("[models.other]\nallowed_keys = ['nobody']\n")
    keys = [
        make_key(name, [scope], "7/hour") for name, scope in (("few", PREDICT), ("other", METRICS))
    ]
    (few, scraper), entries = zip(*keys, strict=True)
    settings = ON_DEMAND | {"api_keys": ";".join(entries), "max_items": 4, "models_file": file}
    async with serving(tmp_path, open_metrics=True, **settings) as api:

        async def status(body: Any, key: str = few, path: str = "one/predict", **more: str) -> int:
            headers = {"x-api-key": key, **more}
            answer = await api.client.post(f"/models/{path}", json=body, headers=headers)
            return answer.status_code

        good = {"input": [1, 2]}
        assert await status(good, key="unknown") == 401
        assert await status(good, key=scraper) == 403
        assert await status(good, path="other/predict") == 403
        assert await status(good, path="one/predict?top_k=1") == 422
        assert await status(good, **{"accept": "text/html"}) == 406
        assert await status({"input": "no"}) == 422
        assert await status({"inputs": [[1, 2]] * 5}, path="one/batch-predict") == 413
        assert await status({"inputs": [[1, 2]] * 4}, path="one/batch-predict") == 429
        assert await api.metric("torchlane_model_loads_total", result="warmed") == 0
        assert await api.metric("torchlane_model_cold") == 2


async def test_a_model_that_cannot_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_demand, "AGAIN_S", 0.2)
    heavy(tmp_path, "one", "other")
    weights = tmp_path / "one" / "1" / "script.pt"
    good = weights.read_bytes()
    weights.write_bytes(b"x" * len(good))  # only the manifest is read at the start
    async with serving(tmp_path, **ON_DEMAND, reload_s=0) as api:
        with capture_logs() as logs:
            answers = await asyncio.gather(*(ask(api, "one", item) for item in range(3)))
        for answer in answers:
            assert (answer.status_code, answer.json()["code"]) == (503, "model_not_ready")
            assert "script.pt" in answer.json()["error"]
        assert [log["event"] for log in logs].count("model_not_warmed") == 1
        assert await states(api) == {"one": "failed", "other": "cold"}
        assert "script.pt" in (await ask(api, "one")).json()["error"]  # at once
        assert (await ask(api, "other")).status_code == 200
        weights.write_bytes(good)
        await asyncio.sleep(0.3)
        assert (await ask(api, "one")).status_code == 200
        assert await states(api) == {"one": "ready", "other": "ready"}


async def test_a_stop_ends_a_load(tmp_path: Path) -> None:
    heavy(tmp_path, "one")
    go_on = threading.Event()
    async with serving(tmp_path, make_backend=held(go_on), **ON_DEMAND, drain_s=0.2) as api:
        asked = asyncio.create_task(ask(api, "one"))
        await asyncio.sleep(0.1)
    go_on.set()
    answer = await asked
    assert (answer.status_code, answer.json()["code"]) == (503, "shutting_down")


@pytest.mark.usefixtures("_only_files_count")
async def test_load_loads_a_cold_model(tmp_path: Path) -> None:
    heavy(tmp_path, "one", "other")
    secret, entry = make_key("ops", [ADMIN, PREDICT])
    settings = ON_DEMAND | {"model_memory": 3 << 20, "min_resident_s": 60, "api_keys": entry}
    async with serving(tmp_path, **settings) as api:
        api.client.headers["x-api-key"] = secret
        for path in ("v2/repository/models/one/load", "admin/models/one/load"):
            assert (await api.client.post(f"/{path}")).status_code == 200
            assert (await api.client.get("/v2/models/one/ready")).status_code == 200
        answer = await api.client.post("/admin/models/other/load")
        assert (answer.status_code, answer.json()["code"]) == (503, "overloaded")
        assert await states(api) == {"one": "ready", "other": "cold"}


@pytest.mark.usefixtures("_only_files_count")
async def test_without_room_requests_get_another_version(tmp_path: Path) -> None:
    heavy(tmp_path, "other")
    for version in (1, 2):
        write_artifact(tmp_path, "one", version=version, module=Heavy())
    file = tmp_path / "models.toml"
    file.write_text("[models.one]\nweights = { 1 = 1, 2 = 1 }\n")
    settings = ON_DEMAND | {"model_memory": 5 << 20, "min_resident_s": 60, "versions": "one=all"}
    async with serving(tmp_path, **settings, models_file=file) as api:
        for name in ("one/versions/1", "other"):
            assert (await ask(api, name)).status_code == 200
        answers = [await ask(api, "one", item) for item in range(10)]
        assert {(each.status_code, each.json()["version"]) for each in answers} == {(200, 1)}


async def test_a_new_version_is_loaded_before_it_replaces_a_loaded_one(tmp_path: Path) -> None:
    heavy(tmp_path, "one")
    async with serving(tmp_path, **ON_DEMAND, reload_s=0.05) as api:
        assert (await ask(api, "one")).json()["version"] == 1
        write_artifact(tmp_path, "one", version=2)

        async def is_new() -> bool:
            return bool((await ask(api, "one")).json()["version"] == 2)

        await until(is_new)
        assert await states(api) == {"one": "ready"}
        assert await api.metric("torchlane_model_loads_total", result="warmed") == 1
        folder = write_artifact(tmp_path, "one", version=3)
        (folder / "script.pt").write_bytes(b"damaged")

        async def has_failed() -> bool:
            return await api.metric("torchlane_model_loads_total", result="failed") == 1

        await until(has_failed)
        assert await is_new()


async def test_a_damaged_version_does_not_replace_a_cold_one(tmp_path: Path) -> None:
    heavy(tmp_path, "one")
    async with serving(tmp_path, **ON_DEMAND, reload_s=0.05) as api:
        folder = write_artifact(tmp_path, "one", version=2)
        (folder / "script.pt").write_bytes(b"damaged")

        async def has_failed() -> bool:
            return await api.metric("torchlane_model_loads_total", result="failed") == 1

        await until(has_failed)
        assert (await ask(api, "one")).json()["version"] == 1


async def test_always_beside_on_demand(tmp_path: Path) -> None:
    heavy(tmp_path, "one", "other")
    file = tmp_path / "models.toml"
    file.write_text('[models.one]\nload = "always"\n')
    made: list[str] = []

    def make(artifact: Any, *_: object) -> FakeBackend:
        made.append(str(artifact.id))
        return FakeBackend(lambda inputs: {"y": inputs["x"] * 2})

    async with serving(tmp_path, make_backend=make, models_file=file, **ON_DEMAND) as api:
        assert await states(api) == {"one": "ready", "other": "cold"}
        assert made == ["one/1"]
