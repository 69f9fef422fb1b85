"""The OpenAPI document is true: its examples work, and answers have its shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from models.integrity import read_artifact
from tests.artifacts import write_artifact, write_manifest
from tests.integration.harness import Api, serving

ROUTES = {
    "/predict",
    "/batch-predict",
    "/models/{name}/predict",
    "/models/{name}/batch-predict",
    "/models/{name}/versions/{version}/predict",
    "/models/{name}/versions/{version}/batch-predict",
}


async def document(api: Api) -> dict[str, Any]:
    return dict((await api.client.get("/openapi.json")).json())


async def test_every_route_is_there(repository: Path) -> None:
    async with serving(repository) as api:
        paths = set((await document(api))["paths"])
    others = {"/models", "/models/{name}", "/health/live", "/health/ready", "/metrics"}
    assert paths == ROUTES | others


@pytest.mark.parametrize("path", sorted(ROUTES))
async def test_the_example_of_a_prediction_route_works(repository: Path, path: str) -> None:
    async with serving(repository) as api:
        operation = (await document(api))["paths"][path]["post"]
        example = operation["requestBody"]["content"]["application/json"]["example"]
        filled = path.replace("{name}", "digits").replace("{version}", "1")
        answer = await api.client.post(filled, json=example)
        assert answer.status_code == 200
        assert set(operation["responses"]) >= {"200", "422", "503"}
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
        wanted = (await document(api))["components"]["schemas"][schema.rsplit("/", 1)[1]]
        assert set(answer.json()) == set(wanted["required"])


async def test_an_example_that_is_too_large_to_show_is_left_out(tmp_path: Path) -> None:
    folder = write_artifact(tmp_path, "double")
    manifest, _ = read_artifact(folder)
    write_manifest(folder, manifest.model_copy(update={"example": None}))
    async with serving(tmp_path) as api:
        for path in ROUTES:
            operation = (await document(api))["paths"][path]["post"]
            assert "example" not in operation["requestBody"]["content"]["application/json"]
        assert (await api.client.get("/models/double")).json()["manifest"]["example"] is None
        assert (await api.client.post("/predict", json={"input": [1, 2]})).status_code == 200


async def test_no_parameter_is_named_twice(repository: Path) -> None:
    async with serving(repository) as api:
        for path, methods in (await document(api))["paths"].items():
            for operation in methods.values():
                names = [p["name"].lower() for p in operation.get("parameters", [])]
                assert len(names) == len(set(names)), path


async def test_operation_ids_are_unique(repository: Path) -> None:
    async with serving(repository) as api:
        paths = (await document(api))["paths"].values()
        ids = [operation["operationId"] for methods in paths for operation in methods.values()]
        assert len(ids) == len(set(ids)) == 11


async def test_the_docs_page_is_served(repository: Path) -> None:
    async with serving(repository) as api:
        assert "openapi.json" in (await api.client.get("/docs")).text
