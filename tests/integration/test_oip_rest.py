"""The Open Inference Protocol over REST, all but `infer`."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import AsyncIterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from app.access.entries import make_key
from models.codec_specs import TensorCodecSpec
from tests.artifacts import write_artifact, write_small
from tests.integration.harness import Api, held, serving, settled
from tests.integration.publishing import Publisher, answered_by

pytestmark = pytest.mark.asyncio(loop_scope="module")
SECRET, LINE = make_key("ops", ["admin", "predict"])
OTHER_SECRET, OTHER_LINE = make_key("mobile", ["predict"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Api]:
    """A model in two versions, and one with a free axis."""
    tmp_path = tmp_path_factory.mktemp("models")
    write_artifact(tmp_path, "double", codec=TensorCodecSpec(labels=("a", "b"), scores="softmax"))
    write_artifact(tmp_path, "double", 2)
    write_small(tmp_path, ["script"], free=True)
    async with serving(tmp_path, versions="all", max_batch_size=16, default_model="double") as api:
        yield api


async def get(api: Api, path: str) -> tuple[int, Any]:
    answer = await api.client.get(path)
    assert answer.headers["content-type"] == "application/json"
    return answer.status_code, answer.json()


async def post(api: Api, path: str, body: bytes = b"") -> tuple[int, Any]:
    """Without a Content-Type, as clients do."""
    answer = await api.client.post(path, content=body)
    return answer.status_code, answer.json() if answer.content else None


async def test_the_server(api: Api) -> None:
    assert await get(api, "/v2") == (
        200,
        {
            "name": "torchlane",
            "version": version("torchlane"),
            "extensions": [
                *("binary_tensor_data", "classification", "model_configuration"),
                *("model_repository", "statistics"),
            ],
        },
    )
    assert await get(api, "/v2/health/live") == (200, {"live": True})
    assert await get(api, "/v2/health/ready") == (200, {"ready": True})


async def test_metadata_has_every_loaded_version(api: Api) -> None:
    """A softmax changes neither the name nor the shape of its output."""
    metadata = {
        "name": "double",
        "versions": ["1", "2"],
        "platform": "pytorch_torchscript",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 2]}],
    }
    ready = {"name": "double", "ready": True}
    for path in ("double", "double/versions/1", "double/versions/2"):
        assert await get(api, f"/v2/models/{path}") == (200, metadata)
        assert await get(api, f"/v2/models/{path}/ready") == (200, ready)


async def test_statistics(api: Api) -> None:
    """A request counts once, however many items it has; an item is an inference."""

    async def counts(path: str) -> list[tuple[str, str, int, int, int, int]]:
        status, body = await get(api, path)
        assert status == 200
        which = ("success", "fail", "cache_hit")
        return [
            (
                *(each["name"], each["version"], each["inference_count"]),
                *(each["inference_stats"][name]["count"] for name in which),
            )
            for each in body["model_stats"]
        ]

    idle = [("double", "1", 0, 0, 0, 0), ("double", "2", 0, 0, 0, 0)]
    assert sorted(await counts("/v2/models/double/stats")) == idle
    for inputs in ([[1, 2], [1, 2], [3, 4]], [[1, 2], [1, 2], [3, 4]], [[1]]):
        path = "/models/double/versions/2/batch-predict"
        answer = await api.client.post(path, json={"inputs": inputs})
        assert answer.status_code == (200 if len(inputs) == 3 else 422)
    assert sorted(await counts("/v2/models/double/stats"))[1] == ("double", "2", 2, 2, 1, 1)
    assert await counts("/v2/models/double/versions/1/stats") == idle[:1]
    assert len(await counts("/v2/models/stats")) == 3


async def test_unknown_models_and_versions(api: Api) -> None:
    for model, says in (
        ("none", "there is no model 'none'"),
        ("double/versions/9", "version 9 of 'double' is not loaded; loaded: 2, 1"),
        ("double/versions/new", "a version must be a whole number"),
        ("double/versions/1000000000", "a version must be a whole number"),
    ):
        for call in ("", "/ready", "/config", "/stats"):
            status, body = await get(api, f"/v2/models/{model}{call}")
            assert status == 404
            assert set(body) == {"error"}
            assert says in body["error"], (model, call)


async def test_another_method_gets_405_with_allow(api: Api) -> None:
    for method, path, allowed in (
        ("DELETE", "/v2/models/double", "GET, HEAD"),
        ("GET", "/v2/repository/index", "POST"),
    ):
        answer = await api.client.request(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
        assert set(answer.json()) == {"error"}


async def test_a_model_named_stats_has_versioned_metadata(tmp_path: Path) -> None:
    write_artifact(tmp_path, "stats")
    async with serving(tmp_path) as api:
        assert set((await get(api, "/v2/models/stats"))[1]) == {"model_stats"}
        assert (await get(api, "/v2/models/stats/versions/1"))[1]["name"] == "stats"
        assert (await get(api, "/v2/models/stats/ready"))[1] == {"name": "stats", "ready": True}


async def test_a_loading_model_is_not_ready(double: Path) -> None:
    go_on = threading.Event()
    async with serving(double, make_backend=held(go_on), wait_ready=False) as api:
        try:
            async with asyncio.timeout(60):
                while not (await api.client.get("/models")).json()["models"]:
                    await asyncio.sleep(0.01)
            assert await get(api, "/v2/health/ready") == (503, {"ready": False})
            unready = {"name": "double", "ready": False}
            assert await get(api, "/v2/models/double/ready") == (503, unready)
            for call in ("", "/config", "/stats"):
                status, body = await get(api, f"/v2/models/double{call}")
                assert (status, "is loading" in body["error"]) == (503, True)
            entry = {"name": "double", "version": "1", "state": "LOADING", "reason": ""}
            assert await post(api, "/v2/repository/index") == (200, [entry])
            assert await post(api, "/v2/repository/index", b'{"ready": true}') == (200, [])
        finally:
            go_on.set()
        await settled(api)
        assert (await get(api, "/v2/models/double/ready"))[0] == 200
        api.app.state.lifecycle.begin_drain(5.0)
        assert await get(api, "/v2/health/ready") == (503, {"ready": False})
        assert await get(api, "/v2/models/double/ready") == (503, unready)


class TestRepository:
    @pytest.fixture
    def publisher(self, tmp_path: Path) -> Publisher:
        made = Publisher(tmp_path)
        made.publish(1)
        return made

    @pytest_asyncio.fixture(loop_scope="module")
    async def api(self, publisher: Publisher) -> AsyncIterator[Api]:
        keys = f"{LINE};{OTHER_LINE}"
        async with serving(publisher.repository, reload_s=0, api_keys=keys) as api:
            api.client.headers["authorization"] = f"Bearer {SECRET}"
            yield api

    async def index(self, api: Api, body: bytes = b"") -> dict[str, tuple[str, str]]:
        status, entries = await post(api, "/v2/repository/index", body)
        assert status == 200
        return {each["version"]: (each["state"], each["reason"]) for each in entries}

    async def test_a_model_is_unloaded_and_loaded(self, api: Api) -> None:
        body = b'{"parameters": {"unload_dependents": true, "other": 1}, "more": 2}'
        assert await post(api, "/v2/repository/models/m/unload", body) == (200, None)
        assert await self.index(api) == {"1": ("UNAVAILABLE", "unloaded")}
        assert await self.index(api, b'{"ready": true}') == {}
        assert (await get(api, "/v2/models/m/ready"))[0] == 404
        assert await post(api, "/v2/repository/models/m/load", body) == (200, None)
        assert await self.index(api, b'{"ready": true}') == {"1": ("READY", "")}
        assert await answered_by(api) == 1

    async def test_a_failing_version_is_reported(self, api: Api, publisher: Publisher) -> None:
        publisher.publish_wrong(2)
        status, body = await post(api, "/v2/repository/models/m/load")
        assert status == 400
        assert "failed to load 'm': m/2: " in body["error"]
        assert "golden example 0" in body["error"]
        found = await self.index(api)
        assert found["1"] == ("READY", "")
        assert (found["2"][0], "golden example 0" in found["2"][1]) == ("UNAVAILABLE", True)
        assert await answered_by(api) == 1

    async def test_load_parameters_and_unknown_models_are_rejected(self, api: Api) -> None:
        for parameter in ("config", "file:1/model.pt"):
            body = json.dumps({"parameters": {parameter: "{}"}}).encode()
            status, answer = await post(api, "/v2/repository/models/m/load", body)
            assert status == 400
            assert f"the parameter {parameter!r} is not supported" in answer["error"]
        for call in ("load", "unload"):
            status, answer = await post(api, f"/v2/repository/models/none/{call}")
            unknown = {"error": "there is no model 'none' in the repository"}
            assert (status, answer) == (404, unknown)

    async def test_malformed_and_oversized_bodies_are_rejected(self, api: Api) -> None:
        for call, (body, status, words) in itertools.product(
            ("index", "models/m/load", "models/m/unload"),
            (
                (b"{", 400, "the body is not JSON"),
                (b"[]", 400, "the body must be a JSON object"),
                (b'{"ready": 1, "parameters": 1}', 400, "must be"),
                (b"{" + b" " * 65_536, 413, "the limit is 65536"),
            ),
        ):
            answered, answer = await post(api, f"/v2/repository/{call}", body)
            assert (answered, words in answer["error"]) == (status, True), answer
        assert await answered_by(api) == 1

    async def test_reading_requires_a_key_and_changes_the_admin_scope(self, api: Api) -> None:
        changes = [f"/v2/repository/models/m/{call}" for call in ("load", "unload", "nope")]
        reads = ["/v2", "/v2/models/m", "/v2/models/m/ready", "/v2/models/stats"]
        api.client.headers["authorization"] = f"Bearer {OTHER_SECRET}"
        assert {(await post(api, path))[0] for path in changes} == {403}
        assert {(await get(api, path))[0] for path in reads} == {200}
        del api.client.headers["authorization"]
        assert {(await post(api, path))[0] for path in changes} == {401}
        assert {(await get(api, path))[0] for path in reads} == {401}
        assert (await post(api, "/v2/repository/index"))[0] == 401
        assert (await get(api, "/v2/health/ready"))[0] == 200
