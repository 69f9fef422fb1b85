"""The calls of TorchServe: what its clients send, and what they read."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator

import numpy as np
import pytest
import pytest_asyncio
from PIL import Image
from torch import nn

from models.codec_specs import TensorCodecSpec
from tests.artifacts import write_artifact, write_small
from tests.integration.harness import Api, serving
from tests.kinds import write_pictures
from tests.unit.models.manifests import spec

pytestmark = pytest.mark.asyncio(loop_scope="module")
DATA = "/predictions/double"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Api]:
    folder = tmp_path_factory.mktemp("models")
    write_artifact(folder, "double")
    write_artifact(folder, "classes", codec=TensorCodecSpec(labels=("a", "b"), scores="softmax"))
    write_artifact(
        *(folder, "cranes", 1, nn.Identity()),
        inputs=(spec("x", shape=(-1, 3)),),
        outputs=(spec("y", shape=(-1, 3)),),
        codec=TensorCodecSpec(labels=("crane", "dog", "crane"), scores="softmax"),
        golden=[{"x": np.zeros(3, np.float32)}],
    )
    write_small(folder, ["script"], free=True)
    write_pictures(folder)
    async with serving(folder, default_model="double") as found:
        yield found


def white() -> bytes:
    file = io.BytesIO()
    Image.new("L", (2, 2), 255).save(file, "png")
    return file.getvalue()


@pytest.mark.parametrize("version", ["", "/1"])
@pytest.mark.parametrize("body", [b"[1, 2]", b'{"data": [1, 2]}', b"[[1, 2]]"[1:-1]])
async def test_json(api: Api, version: str, body: bytes) -> None:
    answer = await api.client.post(DATA + version, content=body)
    assert (answer.status_code, answer.json()) == (200, [2.0, 4.0])


@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_a_picture_as_the_body_or_a_form(api: Api, method: str) -> None:
    for sent in ({"content": white()}, {"files": {"data": ("a.png", white())}}):
        answer = await api.client.request(method, "/predictions/pictures", **sent)
        assert (answer.status_code, answer.json()) == (200, {"light": 1.0, "dark": 0.0})
        assert list(answer.json()) == ["light", "dark"]


async def test_numbers_in_a_form(api: Api) -> None:
    for part in (
        ("a.json", b"[1, 2]"),
        ("a.json", b"[1, 2]", "application/json"),
        (None, b"[1, 2]"),
    ):
        answer = await api.client.post(DATA, files={"data": part})
        assert (answer.status_code, answer.json()) == (200, [2.0, 4.0]), answer.text


async def test_scores_by_label(api: Api) -> None:
    answer = await api.client.post("/predictions/classes", json=[1, 2])
    assert answer.json() == {"b": pytest.approx(0.8807971), "a": pytest.approx(0.1192029)}


async def test_of_classes_with_one_name_the_best_is_kept(api: Api) -> None:
    answer = await api.client.post("/predictions/cranes", json=[0, 1, 6])
    assert answer.json() == {
        "crane": pytest.approx(0.9909, abs=1e-4),
        "dog": pytest.approx(0.0067, abs=1e-4),
    }
    assert list(answer.json()) == ["crane", "dog"]
    native = (await api.client.post("/models/cranes/predict", json={"input": [0, 1, 6]})).json()
    assert native["prediction"]["label"] == "crane"
    assert len(native["prediction"]["scores"]) == 3


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        ("/predictions/none", b"[1, 2]", 404, "ResourceNotFoundException"),
        ("/predictions/double/2", b"[1, 2]", 404, "ResourceNotFoundException"),
        ("/predictions/double/x", b"[1, 2]", 404, "ResourceNotFoundException"),
        (DATA, b"[1]", 400, "BadRequestException"),
        (DATA, b"{", 400, "BadRequestException"),
        (DATA, b'{"input": [1, 2]}', 400, "BadRequestException"),
        (DATA, b"\x89PNG\r\n\x1a\n", 415, "BadRequestException"),
        (DATA, b"[101, 2]", 500, "InternalServerException"),
    ],
)
async def test_errors(api: Api, path: str, body: bytes, status: int, kind: str) -> None:
    answer = await api.client.post(path, content=body)
    assert answer.status_code == status
    assert answer.json() == {"code": status, "type": kind, "message": answer.json()["message"]}
    assert answer.json()["message"]


async def test_health_and_models(api: Api) -> None:
    assert (await api.client.get("/ping")).json() == {"status": "Healthy"}
    models = (await api.client.get("/models")).json()["models"]
    assert {each["modelName"]: each["modelUrl"] for each in models}["double"] == "double/1"
    assert (await api.client.get(DATA)).status_code == 405
