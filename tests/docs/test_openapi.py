"""The OpenAPI document is true: its examples work, and answers have its shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

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
