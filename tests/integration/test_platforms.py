"""The calls of platforms: KServe V1, SageMaker, MLflow and Vertex AI, as documented by each."""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from torch import nn

from app.access.entries import make_key
from models.codec_specs import TensorCodecSpec
from models.tensors import Dtype, TensorSpec
from tests.artifacts import write_artifact, write_small
from tests.integration.harness import Api, held, serving
from tests.integration.test_torchserve import white
from tests.kinds import write_pictures
from tests.text_models import write_text_models

pytestmark = pytest.mark.asyncio(loop_scope="module")
V1, CALL = "/v1/models/double:predict", "/invocations"
ATTRIBUTES = "x-amzn-sagemaker-custom-attributes"
ROW, TWO = [1, 2], [[1, 2], [3, 4]]
SMALL = {"picture": np.zeros((1, 4, 4)).tolist(), "shift": [1.0]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of small models."""
    made = tmp_path_factory.mktemp("models")
    write_artifact(made, "double")
    write_artifact(made, "double", 2)
    write_artifact(made, "classes", codec=TensorCodecSpec(labels=("a", "b"), scores="softmax"))
    parts: tuple[tuple[str, Dtype], ...] = (("whole", "int64"), ("rest", "float32"))
    outputs = tuple(TensorSpec(name=name, dtype=dtype, shape=(-1, 2)) for name, dtype in parts)
    write_artifact(made, "parts", 1, Parts(), outputs=outputs)
    write_small(made, ["script"], free=True)
    write_pictures(made)
    return made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(folder: Path) -> AsyncIterator[Api]:
    async with serving(folder, default_model="double", versions="all", max_items=4) as found:
        yield found


class Parts(nn.Module):
    """x [n, 2] -> whole int64 [n, 2], rest float32 [n, 2]."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See the class."""
        whole = torch.trunc(x)
        return whole.to(torch.int64), x - whole


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, np.asarray(array, np.float32))
    return file.getvalue()


def split(*rows: Any, columns: Any = ("a", "b"), **more: Any) -> dict[str, Any]:
    return {"dataframe_split": {"columns": list(columns), "data": list(rows), **more}}


DOUBLED = [[2.0, 4.0], [6.0, 8.0]]


@pytest.mark.parametrize(
    ("path", "body", "answer"),
    [
        (V1, {"instances": TWO}, {"predictions": DOUBLED}),
        (V1, {"inputs": TWO}, {"outputs": DOUBLED}),
        (V1, {"inputs": {"x": TWO}}, {"outputs": DOUBLED}),
        (V1, {"instances": [{"x": ROW}]}, {"predictions": DOUBLED[:1]}),
        (V1, {"signature_name": "serving_default", "instances": TWO}, {"predictions": DOUBLED}),
        ("/v1/models/double/versions/1:predict", {"instances": TWO}, {"predictions": DOUBLED}),
        (CALL, {"instances": TWO}, {"predictions": DOUBLED}),
        (CALL, {"inputs": TWO}, {"predictions": DOUBLED}),
        (CALL, {"inputs": {"x": TWO}, "params": None}, {"predictions": DOUBLED}),
        (CALL, split(*TWO), {"predictions": DOUBLED}),
        (CALL, split(*TWO, columns=[0, 1], index=[0, 1]), {"predictions": DOUBLED}),
        (CALL, split([ROW], columns=["x"]), {"predictions": DOUBLED[:1]}),
        (CALL, {"dataframe_split": {"data": TWO}}, {"predictions": DOUBLED}),
        (CALL, {"dataframe_records": [{"a": 1, "b": 2}]}, {"predictions": DOUBLED[:1]}),
    ],
)
async def test_every_form_of_items(api: Api, path: str, body: Any, answer: Any) -> None:
    for _ in range(3):  # computed, cached, remembered
        found = await api.client.post(path, json=body)
        assert (found.status_code, found.json()) == (200, answer), found.text


async def test_labels_are_shown_where_no_other_call_shows_them(api: Api, folder: Path) -> None:
    """Platforms may call one path only; elsewhere the answer is a tensor."""
    scores = [pytest.approx(0.1192029), pytest.approx(0.8807971)]
    v1 = await api.client.post("/v1/models/classes:predict", json={"instances": [ROW]})
    assert v1.json() == {"predictions": [scores]}
    async with serving(folder, default_model="classes") as other:
        answer = await other.client.post(CALL, json={"instances": [ROW]})
    assert answer.json() == {"predictions": [{"label": "b", "score": scores[1], "scores": scores}]}


async def test_several_inputs_and_outputs(api: Api) -> None:
    by_column = {name: [value] * 2 for name, value in SMALL.items()}
    answers = [
        await api.client.post("/v1/models/small:predict", json=body)
        for body in ({"instances": [SMALL] * 2}, {"inputs": by_column})
    ]
    rows, columns = answers[0].json()["predictions"], answers[1].json()["outputs"]
    assert rows == columns
    assert np.shape(rows) == (2, 3)
    item = {"whole": [1, -2], "rest": [0.5, -0.25]}
    for form, answer in (
        ("instances", {"predictions": [item, item]}),
        ("inputs", {"outputs": {name: [value, value] for name, value in item.items()}}),
    ):
        sent = {form: [[1.5, -2.25]] * 2}
        assert (await api.client.post("/v1/models/parts:predict", json=sent)).json() == answer


async def test_files(api: Api, folder: Path) -> None:
    """In base64 with TensorFlow's wrapper or without, by name or alone; or as the body."""
    text = base64.b64encode(white()).decode()
    picture = {"predictions": [[0.0, 1.0]]}
    for item in (text, {"b64": text}, {"picture": {"b64": text}}, {"picture": text}):
        answer = await api.client.post("/v1/models/pictures:predict", json={"instances": [item]})
        assert answer.json() == picture, answer.text
    async with serving(folder, default_model="pictures") as other:
        sagemaker = {"content-type": "Application/X-Image; charset=binary"}
        for headers in ({"content-type": "image/png"}, sagemaker, {}):
            answer = await other.client.post(CALL, content=white(), headers=headers)
            assert [each["label"] for each in answer.json()["predictions"]] == ["light"]
        body = split([text], columns=["picture"])
        assert (await other.client.post(CALL, json=body)).json() == answer.json()
        unread = await other.client.post(CALL, content=b"BM", headers=sagemaker)
        assert unread.status_code == 415
        assert "not 'application/x-image'" in unread.json()["message"]


async def test_tables_of_texts(tmp_path: Path) -> None:
    """By the columns' names, or by any others, with which MLflow's signatures have them."""
    write_text_models(tmp_path)
    for model, named, rows in (
        ("embed", ("text",), (["a cat"], ["a dog"])),
        ("rerank", ("text", "text_pair"), (["a cat", "a dog"],)),
    ):
        async with serving(tmp_path, default_model=model) as api:
            wanted = await api.client.post(CALL, json=split(*rows, columns=named))
            assert wanted.status_code == 200, wanted.text
            others = split(*rows, columns=["question", "answer"][: len(named)])
            assert (await api.client.post(CALL, json=others)).json() == wanted.json()
            wrong = await api.client.post(CALL, json=split([1, 2], columns=["question", "answer"]))
            assert "got 'question', 'answer'" in wrong.json()["message"]
            others = split(rows[0], [None] * len(named), columns=["q", "a"][: len(named)])
            missing = await api.client.post(CALL, json=others)  # as pandas writes a missing text
            assert missing.status_code == 400
            assert "dataframe_split[1]: " in missing.json()["message"]
            assert "'q'" not in missing.json()["message"]  # it is no name of an input


async def test_arrays_of_numpy(api: Api) -> None:
    """As SageMaker's NumpySerializer and NumpyDeserializer send and read them."""
    kind = {"content-type": "application/x-npy"}
    answer = await api.client.post(CALL, content=npy(TWO), headers=kind)
    assert answer.json() == {"predictions": DOUBLED}
    answer = await api.client.post(
        CALL, content=npy(TWO), headers={**kind, "accept": kind["content-type"]}
    )
    assert answer.headers["content-type"] == "application/x-npy"
    assert np.load(io.BytesIO(answer.content)).tolist() == DOUBLED


async def test_custom_attributes_come_back_to_their_caller(api: Api) -> None:
    """Also if the answer is remembered from another caller."""
    for index in range(4):
        for headers in ({ATTRIBUTES: f"trace={index}"}, {}):
            answer = await api.client.post(CALL, json={"instances": [[7, 7]]}, headers=headers)
            assert answer.status_code == 200
            assert answer.headers.get(ATTRIBUTES) == headers.get(ATTRIBUTES)
    answer = await api.client.post(CALL, json={"instances": TWO}, headers={ATTRIBUTES: "a" * 1025})
    assert answer.status_code == 400
    assert "at most 1024 characters" in answer.json()["message"]


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        *(
            (path, body, status, message)
            for path in (V1, CALL)
            for body, status, message in (
                ({}, 400, "exactly one of 'instances' or 'inputs'"),
                ({"instances": TWO, "inputs": TWO}, 400, "exactly one of"),
                ({"instances": []}, 400, "'instances' must be a list of at least one item"),
                ({"instances": [ROW, [1]]}, 400, "instances[1]: 'x': expected float32 of shape"),
                ({"inputs": {"x": []}}, 400, "of at least 1, got 'x': 0"),
                ({"inputs": {}}, 400, "got none"),
                ({"inputs": {"x": TWO, "y": [1]}}, 400, "got 'x': 2, 'y': 1"),
                ({"inputs": {"x": 1}}, 400, "'x' in 'inputs' must be a list"),
                ({"instances": TWO, "parameters": {"a": 1}}, 400, "'parameters' is not supported"),
                ({"instances": TWO, "unheard_of": 1}, 400, "'unheard_of' is not supported"),
                ({"instances": [ROW] * 5}, 413, "5 items in one request, the limit is 4"),
                ({"instances": [[101, 2]]}, 500, ""),
            )
        ),
        (V1, split(ROW), 400, "exactly one of 'instances' or 'inputs', got 'dataframe_split'"),
        (CALL, split(), 400, "a list of at least one row"),
        (CALL, split([1]), 400, "row 0 must be a list of 2 values"),
        (CALL, split(ROW, columns=[0, 0]), 400, "'columns', a list of different names"),
        (CALL, split(ROW, columns=[0.5, 1]), 400, "'columns', a list of different names"),
        (CALL, split(ROW, dtype="int"), 400, "nothing else but 'index'"),
        (CALL, {"dataframe_records": [1]}, 400, "row 0 must be an object"),
        (CALL, {"dataframe_records": [{"a": 1, "b": 2}, {"a": 1}]}, 400, "columns of row 0"),
        # Items are counted before anything is made of them.
        (CALL, split(*[[1]] * 5), 413, "5 items in one request, the limit is 4"),
        (CALL, {"dataframe_records": [1] * 5}, 413, "5 items in one request, the limit is 4"),
        (V1, {"inputs": {"x": [1] * 5}}, 413, "5 items in one request, the limit is 4"),
        ("/v1/models/none:predict", {"instances": TWO}, 404, "there is no model 'none'"),
        ("/v1/models/double/versions/9:predict", {"instances": TWO}, 404, "version 9 of 'double'"),
    ],
)
async def test_mistakes(api: Api, path: str, body: Any, status: int, message: str) -> None:
    answer = await api.client.post(path, json=body)
    assert answer.status_code == status, answer.text
    shown = answer.json()
    if path == CALL:
        code = "INTERNAL_ERROR" if status == 500 else "BAD_REQUEST"
        assert shown == {"error_code": code, "message": shown["message"]}
        assert message in shown["message"]
    else:
        assert set(shown) == {"error"}
        assert message in shown["error"]


async def test_a_model_that_is_not_ready(double: Path) -> None:
    go_on = threading.Event()
    async with serving(double, wait_ready=False, make_backend=held(go_on)) as api:
        try:
            for path in ("/health", "/ping", "/v1/models/double"):
                assert (await api.client.get(path)).status_code == 503
            for path in (V1, CALL):
                answer = await api.client.post(path, json={"instances": TWO})
                assert answer.status_code == 503
        finally:
            go_on.set()


async def test_models_and_health(api: Api) -> None:
    models = (await api.client.get("/v1/models")).json()
    assert set(models["models"]) == {each["id"] for each in models["data"]} > {"double"}
    ok = {"error_code": "OK", "error_message": ""}
    versions = [{"version": each, "state": "AVAILABLE", "status": ok} for each in ("2", "1")]
    for path, there in (("double", versions), ("double/versions/1", versions[1:])):
        found = (await api.client.get(f"/v1/models/{path}")).json()
        assert (found["name"], found["ready"]) == ("double", True)
        assert found["model_version_status"] == there
    assert (await api.client.get("/v1/models/none")).status_code == 404
    for path in ("/health", "/ping"):
        assert (await api.client.get(path)).json() == {"status": "Healthy"}
    version = await api.client.get("/version")
    assert (version.status_code, version.text) == (200, api.app.version)


async def test_vertex_ai_chooses_the_paths(folder: Path) -> None:
    predict, health = "/v1/endpoints/12/deployedModels/34:predict", "/v1/endpoints/12/x.y"
    async with serving(
        folder, default_model="double", predict_route=predict, health_route=health
    ) as api:
        assert (await api.client.get(health)).status_code == 200
        for path in (predict, CALL):
            answer = await api.client.post(path, json={"instances": TWO, "parameters": {}})
            assert answer.json() == {"predictions": DOUBLED}
        wrong = await api.client.post(predict, json={})
        assert (wrong.status_code, wrong.json()["error_code"]) == (400, "BAD_REQUEST")


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("predict_route", "/predict"),
        ("predict_route", "/admin/reload"),
        ("health_route", "/models"),
        ("health_route", "/metrics"),
    ],
)
async def test_a_path_of_another_call_is_refused(folder: Path, name: str, path: str) -> None:
    routes: dict[str, Any] = {name: path}
    with pytest.raises(ValueError, match=f"TORCHLANE_{name.upper()}={path} is "):
        async with serving(folder, **routes):
            pass


async def test_keys_and_rate_limits(folder: Path) -> None:
    secret, line = make_key("mobile", ["predict"], "3/minute")
    async with serving(folder, default_model="double", api_keys=line) as api:
        for path, key in ((V1, "error"), (CALL, "message")):
            answer = await api.client.post(path, json={"instances": TWO})
            assert answer.status_code == 401
            assert "an API key is required" in answer.json()[key]
        assert (await api.client.get("/version")).status_code == 401
        assert (await api.client.get("/health")).status_code == 200
        headers = {"authorization": f"Bearer {secret}"}
        statuses = [
            (await api.client.post(path, json={"instances": TWO}, headers=headers)).status_code
            for path in (V1, CALL)
        ]
        assert statuses == [200, 429]  # two items each
