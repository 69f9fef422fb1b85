"""The OpenAPI document is true: its examples work, and answers have its shapes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from models.integrity import read_artifact
from tests.artifacts import write_artifact, write_manifest
from tests.docs.blocks import ROOT
from tests.integration.harness import Api, serving, settled

JSON, FORM = "application/json", "multipart/form-data"
FLOAT_MAX = 3.4028234663852886e38
ROUTES = {
    "/predict",
    "/batch-predict",
    "/models/{name}/predict",
    "/models/{name}/batch-predict",
    "/models/{name}/versions/{version}/predict",
    "/models/{name}/versions/{version}/batch-predict",
}
ADMIN = {
    "/admin/profile",
    "/admin/reload",
    "/admin/models/{name}/load",
    "/admin/models/{name}/unload",
    *(f"/admin/models/{{name}}/release/{action}" for action in ("pause", "resume", "rollback")),
    "/admin/models/{name}/versions/{version}/load",
    "/admin/models/{name}/versions/{version}/unload",
}


V2_MODEL = {
    f"/v2/models/{{name}}{version}{call}"
    for version in ("", "/versions/{version}")
    for call in ("", "/ready", "/config", "/stats", "/infer")
}
REPORT = "/models/{name}/versions/{version}/report"
TORCHSERVE = {"/predictions/{name}", "/predictions/{name}/{version}"}
TEXT = {
    *("/v1/embeddings", "/v1/models", "/v1/models/{model}", "/embed", "/embeddings", "/rerank"),
    *("/classify", "/", "/info"),
}
PLATFORMS = {
    *("/v1/models/{name}:predict", "/v1/models/{name}/versions/{version}:predict"),
    *("/invocations", "/version", "/health"),
}
V2 = V2_MODEL | {
    *("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/stats", "/v2/repository/index"),
    *("/v2/repository/models/{name}/load", "/v2/repository/models/{name}/unload"),
}


def schema_of(described: dict[str, Any]) -> str:
    """The reference to the schema of a JSON body or answer."""
    return str(described["content"][JSON]["schema"]["$ref"])


async def document(api: Api) -> dict[str, Any]:
    return dict((await api.client.get("/openapi.json")).json())


@pytest.fixture(scope="module")
def described(repository: Path) -> dict[str, Any]:
    """The document of a server whose default model is loaded."""

    async def ask() -> dict[str, Any]:
        async with serving(repository, default_model="digits") as api:
            return await document(api)

    return asyncio.run(ask())


def test_every_route_is_listed(described: dict[str, Any]) -> None:
    paths = set(described["paths"])
    models = {"/models", "/models/{name}", "/models/{name}/shadow", REPORT}
    others = {"/health/live", "/health/ready", "/ping", "/metrics", "/live"}
    assert paths == ROUTES | ADMIN | V2 | TORCHSERVE | TEXT | PLATFORMS | models | others


async def test_the_examples_of_prediction_routes_work(repository: Path) -> None:
    async with serving(repository, default_model="digits") as api:
        told = await document(api)
        for path in ROUTES:
            operation = told["paths"][path]["post"]
            example = operation["requestBody"]["content"][JSON]["example"]
            filled = path.replace("{name}", "digits").replace("{version}", "1")
            answer = await api.client.post(filled, json=example)
            assert answer.status_code == 200
            assert set(operation["responses"]) >= {"200", "422", "503"}
            schema = schema_of(operation["responses"]["200"]).rsplit("/", 1)[1]
            assert set(answer.json()) == set(told["components"]["schemas"][schema]["required"])


async def test_top_k_is_a_parameter_only_where_supported(repository: Path, tmp_path: Path) -> None:
    def having(paths: dict[str, Any]) -> set[str]:
        found = {path for path in ROUTES if "top_k" in str(paths[path]["post"]["parameters"])}
        return found & {"/predict", "/batch-predict", "/models/{name}/predict"}

    named = "/models/{name}/predict"
    async with serving(repository) as api:
        assert having((await document(api))["paths"]) == {"/predict", "/batch-predict", named}
    write_artifact(tmp_path, "double")
    async with serving(tmp_path) as api:
        assert having((await document(api))["paths"]) == {named}


async def test_the_documented_forms_work(repository: Path) -> None:
    three = (ROOT / "docs/three.png").read_bytes()
    async with serving(repository, default_model="digits") as api:
        paths = (await document(api))["paths"]
        for path in ROUTES:
            form = paths[path]["post"]["requestBody"]["content"][FORM]["schema"]
            (field,) = form["required"]
            many = form["properties"][field]["type"] == "array"
            filled = path.replace("{name}", "digits").replace("{version}", "1")
            answer = await api.client.post(filled, files=[(field, three)] * (2 if many else 1))
            predictions = answer.json()["predictions"] if many else [answer.json()["prediction"]]
            assert [each["label"] for each in predictions] == ["3"] * (2 if many else 1)


async def test_the_default_models_body_has_an_exact_schema(tmp_path: Path) -> None:
    write_artifact(tmp_path, "double")
    async with serving(tmp_path, max_items=7) as api:
        told = await document(api)
        body = told["paths"]["/batch-predict"]["post"]["requestBody"]
        schema = told["components"]["schemas"]["DefaultBatchPredictRequest"]
        assert schema_of(body).endswith("/DefaultBatchPredictRequest")
        value = schema["properties"]["inputs"]
        assert (value["minItems"], value["maxItems"]) == (1, 7)
        number = {"type": "number", "minimum": -FLOAT_MAX, "maximum": FLOAT_MAX}
        item = {"type": "array", "items": number, "minItems": 2, "maxItems": 2}
        assert value["items"]["anyOf"][0] == item
        assert "application/x-npy" in body["description"]
        assert "image/png" not in body["description"]
        form = body["content"][FORM]
        assert form["schema"]["properties"]["file"]["items"]["minLength"] == 1
        types = "application/octet-stream, application/x-npy, application/x-npz"
        assert form["encoding"] == {"file": {"contentType": types}}


async def test_json_is_the_first_media_type(tmp_path: Path) -> None:
    """They take an answer's first media type, and stumble over bodies of types that are not theirs.

    tests/clients proves it with one of them.
    """
    write_artifact(tmp_path, "double")
    async with serving(tmp_path) as api:
        paths = (await document(api))["paths"]
    for path in ROUTES:
        operation = paths[path]["post"]
        assert list(operation["requestBody"]["content"]) == [JSON, "application/octet-stream", FORM]
        answers = operation["responses"]["200"]["content"]
        files = ["application/x-npz"] + ["image/png"] * ("batch" not in path)
        assert list(answers) == [JSON, "application/octet-stream", "application/x-npy", *files]
        assert schema_of(operation["responses"]["200"]).endswith("PredictAnswer")


def test_path_examples_name_a_loaded_model(described: dict[str, Any]) -> None:
    path = "/models/{name}/versions/{version}/predict"
    parameters = described["paths"][path]["post"]["parameters"]
    examples = {each["name"]: each["example"] for each in parameters if each["in"] == "path"}
    assert examples == {"name": "digits", "version": 1}


def test_only_paths_without_side_effects_have_examples(described: dict[str, Any]) -> None:
    shown = {
        path
        for path, methods in described["paths"].items()
        for operation in methods.values()
        if any("example" in each for each in operation.get("parameters", ()))
    }
    assert (
        shown
        == {path for path in ROUTES if "{" in path}
        | {path for path in PLATFORMS if "{" in path}
        | {"/models/{name}", REPORT}
        | V2_MODEL
        | TORCHSERVE
    )


def test_framework_validation_errors_are_not_documented(described: dict[str, Any]) -> None:
    parameters = described["paths"]["/models/{name}"]["get"]["parameters"]
    assert "ValidationError" not in str(described)
    assert [(each["name"], each["in"]) for each in parameters] == [
        ("name", "path"),
        ("full", "query"),
        ("version", "query"),
    ]


def test_every_answer_documents_its_headers(described: dict[str, Any]) -> None:
    paths = described["paths"]
    for path, methods in paths.items():
        for operation in methods.values():
            for status, response in operation["responses"].items():
                assert response["headers"]["X-Request-Id"]["required"], (path, status)
    responses = paths["/predict"]["post"]["responses"]
    assert {"Server-Timing", "X-Torchlane-Cache"} < set(responses["200"]["headers"])
    assert "Retry-After" in responses["503"]["headers"]


async def test_the_schema_is_general_without_a_loaded_model(tmp_path: Path) -> None:
    async with serving(tmp_path, wait_ready=False) as api:
        told = await document(api)
        assert "ValidationError" not in str(told)
        body = told["paths"]["/predict"]["post"]["requestBody"]
        assert "image/png" in body["description"]
        assert schema_of(body).endswith("/PredictRequest")
        assert "example" not in body["content"][JSON]


async def test_the_document_is_rebuilt_only_for_another_model(tmp_path: Path) -> None:
    write_artifact(tmp_path, "double")
    async with serving(tmp_path, wait_ready=False) as api:
        general = api.app.openapi()
        assert api.app.openapi() is general
        await settled(api)
        exact = api.app.openapi()
        assert exact != general
        assert api.app.openapi() is exact


async def test_an_example_too_large_to_show_is_omitted(tmp_path: Path) -> None:
    folder = write_artifact(tmp_path, "double")
    manifest = read_artifact(folder).manifest
    write_manifest(folder, manifest.model_copy(update={"example": None}))
    async with serving(tmp_path) as api:
        for path in ROUTES:
            operation = (await document(api))["paths"][path]["post"]
            assert "example" not in operation["requestBody"]["content"][JSON]
        assert (await api.client.get("/models/double")).json()["example"] is None
        assert (await api.client.post("/predict", json={"input": [1, 2]})).status_code == 200


def test_parameters_and_operations_have_unique_names(described: dict[str, Any]) -> None:
    operations = [each for methods in described["paths"].values() for each in methods.values()]
    for operation in operations:
        names = [each["name"].lower() for each in operation.get("parameters", [])]
        assert len(names) == len(set(names)), operation["operationId"]
    ids = [operation["operationId"] for operation in operations]
    assert len(ids) == len(set(ids)) == 59
