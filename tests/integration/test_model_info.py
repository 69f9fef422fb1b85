"""GET /models and GET /models/NAME: short by default, everything on demand."""

from __future__ import annotations

import asyncio
import threading
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from app.access.entries import PREDICT, make_key
from models.codec_specs import TensorCodecSpec
from tests.artifacts import write_artifact
from tests.integration.harness import Api, held, serving, settled

SUMMARY = {
    *("name", "kind", "default", "state", "version", "versions", "problem"),
    *("modelName", "modelUrl", "weights", "release", "shadow"),
}
INFO = SUMMARY | {
    *("limits", "description", "precision", "codec", "media_types", "inputs", "outputs"),
    *("labels", "example", "calls", "request_schema", "streams"),
}
DETAILS = INFO | {"settings", "variant", "signed_by", "replicas", "manifest"}
PATHS = ("/models", "/models/double")
READY = {
    "version": 1,
    "state": "ready",
    **dict.fromkeys(("problem", "step", "stage", "progress", "seconds", "left_s", "idle_s")),
}


async def versions(api: Api) -> list[dict[str, Any]]:
    found = (await api.client.get("/models")).json()["models"]
    return list(found[0]["versions"]) if found else []


def without_memory(version: dict[str, Any]) -> dict[str, Any]:
    """A loaded version without its memory, which depends on the process."""
    assert version["memory_bytes"] > 0
    return {key: value for key, value in version.items() if key != "memory_bytes"}


async def test_model_info_has_what_callers_need(tmp_path: Path) -> None:
    codec = TensorCodecSpec(labels=("a", "b"), scores="softmax")
    write_artifact(tmp_path, "double", codec=codec)
    async with serving(tmp_path, max_items=7, max_body_bytes=9999) as api:
        answer = await api.client.get("/models/double")
        info = answer.json()
        sent = await api.client.post("/predict", json={"input": info["example"]})
    assert set(info) == INFO
    assert len(answer.content) < 1000
    assert (info["name"], info["default"], info["state"], info["version"]) == (
        *("double", True, "ready", 1),
    )
    assert [without_memory(each) for each in info["versions"]] == [READY]
    assert info["limits"] == {"items": 7, "body_bytes": 9999}
    assert (info["codec"], info["precision"], info["labels"]) == ("tensor", "float32", ["a", "b"])
    assert info["media_types"] == [
        *("application/json", "application/octet-stream", "application/x-npy"),
        "application/x-npz",
    ]
    assert [(each["name"], each["dtype"], each["shape"]) for each in info["inputs"]] == [
        ("x", "float32", [-1, 2])
    ]
    assert [each["name"] for each in info["outputs"]] == ["y"]
    assert sent.json()["prediction"]["label"] == "b"


async def test_models_are_described_without_golden_data_or_digests(double: Path) -> None:
    async with serving(double, devices="cpu*2") as api:
        short = (await api.client.get("/models/double?full=false")).json()
        details = (await api.client.get("/models/double?full=true")).json()
        assert (await api.client.get("/models?full=true")).json() == {"models": [details]}
        assert (await api.client.get("/models/nope?full=true")).status_code == 404
    assert set(details) == DETAILS
    assert {name: details[name] for name in short} == short
    assert len(details["replicas"]) == 2
    assert details["manifest"]["variants"]
    assert not {"golden", "files"} & set(details["manifest"])


async def test_any_loaded_version_can_be_described(tmp_path: Path) -> None:
    for version in (1, 2):
        write_artifact(tmp_path, "double", version=version)
    async with serving(tmp_path, versions="latest:2") as api:
        for query, version in (("", 2), ("version=2", 2), ("version=1", 1)):
            for path in ("/models/double?", "/models/double?full=true&"):
                info = (await api.client.get(path + query)).json()
                assert (info["version"], info["modelUrl"]) == (version, f"double/{version}")
                assert (info["state"], len(info["versions"])) == ("ready", 2)
            assert info["manifest"]["version"] == version
        for query in ("3", "", "one", "-1", "1&version=1"):
            answer = await api.client.get(f"/models/double?version={query}")
            assert (answer.status_code, answer.json()["code"]) == (404, "model_not_found"), query


async def test_a_failed_model_shows_its_problem(tmp_path: Path) -> None:
    folder = write_artifact(tmp_path, "double")
    (folder / "script.pt").write_bytes(b"broken")
    async with serving(tmp_path, wait_ready=False) as api:
        await settled(api)
        info = (await api.client.get("/models/double")).json()
        details = (await api.client.get("/models/double?full=true")).json()
        assert (await api.client.get("/models/double?version=1")).status_code == 404
    assert (info["state"], info["version"], info["inputs"]) == ("failed", None, [])
    assert "script.pt" in info["versions"][0]["problem"]
    assert set(info) == INFO
    assert (details["manifest"], details["signed_by"]) == (None, None)


async def test_a_load_shows_its_step_and_duration(double: Path) -> None:
    go_on = threading.Event()
    async with serving(double, make_backend=held(go_on), wait_ready=False) as api:
        try:
            async with asyncio.timeout(60):
                while "reading" not in str(found := await versions(api)):
                    await asyncio.sleep(0.01)
        finally:
            go_on.set()
        assert (found[0]["state"], found[0]["step"]) == ("loading", "reading weights for cpu#0")
        assert (found[0]["stage"], found[0]["progress"]) == ("load", 0.0)
        assert found[0]["seconds"] >= 0
        await settled(api)
        assert without_memory((await versions(api))[0]) == READY


async def test_an_invalid_full_parameter_is_rejected(double: Path) -> None:
    _, line = make_key("somebody", [PREDICT])
    queries = ("full=yes", "full=", "full=1&full=true")
    asked = [f"{path}?{query}" for path in PATHS for query in queries]
    async with serving(double) as api:
        for path in asked:
            answer = await api.client.get(path)
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input"), path
            assert "use full=true or full=false" in answer.json()["error"]
    async with serving(double, api_keys=line) as api:  # without the right key nothing is revealed
        for path in asked:
            assert (await api.client.get(path)).status_code == 401


async def test_build_and_model_info_are_exported(tmp_path: Path) -> None:
    write_artifact(tmp_path, "double", version=3)
    async with serving(tmp_path, variant="script", queue_limit_items=7, cache_bytes=12345) as api:
        build = {"version": version_of("torchlane"), "torch": version_of("torch")}
        assert await api.metric("torchlane_build_info", **build) == 1
        model = {"model": "double", "version": "3"}
        pinned = {**model, "variant": "script", "precision": "float32"}
        assert await api.metric("torchlane_model_info", **pinned) == 1
        assert await api.metric("torchlane_queue_limit_items", **model) == 7
        assert await api.metric("torchlane_cache_limit_bytes") == 12345
        assert await api.metric("torchlane_bodies_limit_bytes") == 1 << 30
        assert await api.metric("torchlane_bodies_bytes") == 0
        assert await api.metric("torchlane_ready") == 1
        api.app.state.lifecycle.begin_drain(10)
        assert await api.metric("torchlane_ready") == 0
