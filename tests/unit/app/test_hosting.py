"""What Vertex AI and SageMaker say in their own way, and what becomes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.hosting import hosted

VERTEX = {
    "AIP_HTTP_PORT": "8080",
    "AIP_HEALTH_ROUTE": "/v1/endpoints/1/deployedModels/2",
    "AIP_PREDICT_ROUTE": "/v1/endpoints/1/deployedModels/2:predict",
    "AIP_STORAGE_URI": "",
}


def test_without_a_platform_nothing_is_said(tmp_path: Path) -> None:
    """In particular not by the argument `serve` alone, which would open the port to all."""
    for arguments in ([], ["serve"]):
        found = hosted({"AIP_STORAGE_URI": "gs://b"}, arguments, tmp_path / "none")
        assert (found.settings, list(found.arguments)) == ({}, [])
    (tmp_path / "a").mkdir()
    assert hosted({}, ["--port", "1"], tmp_path).settings == {}
    assert list(hosted({}, ["serve", "--port", "1"], tmp_path).arguments) == ["--port", "1"]


def test_vertex_ai(tmp_path: Path) -> None:
    found = hosted(VERTEX, [], tmp_path / "none")
    assert found.settings == {
        "host": "0.0.0.0",
        "port": "8080",
        "health_route": VERTEX["AIP_HEALTH_ROUTE"],
        "predict_route": VERTEX["AIP_PREDICT_ROUTE"],
    }
    stored = hosted({**VERTEX, "AIP_STORAGE_URI": "gs://bucket/models"}, [])
    assert stored.settings["model_dir"] == "gs://bucket/models"
    assert stored.sources["model_dir"] == "AIP_STORAGE_URI"


@pytest.mark.parametrize(
    ("variables", "arguments", "port"),
    [
        ({}, ["serve"], "8080"),
        ({"SAGEMAKER_BIND_TO_PORT": "9000"}, [], "9000"),
        ({"SAGEMAKER_BIND_TO_PORT": "9000"}, ["serve"], "9000"),
    ],
)
def test_sagemaker(
    tmp_path: Path, variables: dict[str, str], arguments: list[str], port: str
) -> None:
    in_image = hosted(variables, arguments, tmp_path)
    assert in_image.settings == {"host": "0.0.0.0", "port": port}
    (tmp_path / "digits").mkdir()
    unpacked = hosted(variables, arguments, tmp_path)
    assert unpacked.settings == {"host": "0.0.0.0", "port": port, "model_dir": str(tmp_path)}


def test_sagemaker_without_its_folder(tmp_path: Path) -> None:
    variables = {"SAGEMAKER_BIND_TO_PORT": "9000"}
    said = hosted(variables, [], tmp_path / "none")
    assert said.settings == {"host": "0.0.0.0", "port": "9000"}
    assert hosted({}, ["serve"], tmp_path / "none").settings == {}
