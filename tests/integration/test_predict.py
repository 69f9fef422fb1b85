"""The HTTP contract of the prediction routes, on tiny real models."""

from __future__ import annotations

import base64
import io
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from models.manifest import TensorCodecSpec
from tests.artifacts import Y, write_artifact
from tests.integration.harness import Api, serving


class TwoOutputs(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, x + 1


@pytest.fixture
async def api(tmp_path: Path, repository: Path) -> AsyncIterator[Api]:
    write_artifact(tmp_path, "double", version=3)
    write_artifact(tmp_path, "labelled", codec=TensorCodecSpec(labels=("a", "b"), scores="softmax"))
    second = Y.model_copy(update={"name": "z"})
    write_artifact(tmp_path, "two", module=TwoOutputs(), outputs=(Y, second))
    for name in ("digits", "pairwise"):
        shutil.copytree(repository / name, tmp_path / name, copy_function=os.link)
    async with serving(tmp_path, default_model="double", max_items=8, max_body_bytes=200_000) as a:
        yield a


async def post(api: Api, path: str, payload: object, **headers: str) -> Any:
    return await api.client.post(path, json=payload, headers=headers)


async def test_one_prediction(api: Api) -> None:
    answer = await post(api, "/predict", {"input": [1, 2]})
    assert answer.status_code == 200
    assert answer.json() == {
        "model": "double",
        "version": 3,
        "prediction": {"outputs": {"y": [2.0, 4.0]}},
    }
    assert answer.headers["content-type"] == "application/json"


async def test_the_same_input_again_is_a_hit(api: Api) -> None:
    first = await post(api, "/predict", {"input": [1, 2]})
    again = await post(api, "/predict", {"input": [1.0, 2.0]})
    assert first.headers["x-torchlane-cache"] == "miss"
    assert again.headers["x-torchlane-cache"] == "hit"
    assert first.json() == again.json()


async def test_a_batch_keeps_order_and_count_and_computes_duplicates_once(api: Api) -> None:
    a, b = [1, 1], [2, 2]
    before = await api.metric("torchlane_items_computed_total", model="double")
    answer = await post(api, "/batch-predict", {"inputs": [a, b, a, a]})
    got = [p["outputs"]["y"] for p in answer.json()["predictions"]]
    assert got == [[2, 2], [4, 4], [2, 2], [2, 2]]
    assert answer.headers["x-torchlane-cache"] == "hit=0, miss=2, joined=2"
    assert await api.metric("torchlane_items_computed_total", model="double") - before == 2
    again = await post(api, "/batch-predict", {"inputs": [b, [3, 3]]})
    assert again.headers["x-torchlane-cache"] == "hit=1, miss=1, joined=0"


async def test_server_timing_tells_where_the_time_went(api: Api) -> None:
    answer = await post(api, "/predict", {"input": [5, 6]})
    parts = dict(part.strip().split(";dur=") for part in answer.headers["server-timing"].split(","))
    assert list(parts) == ["decode", "queue", "compute", "encode"]
    assert all(float(value) >= 0 for value in parts.values())
    assert float(parts["compute"]) > 0


async def test_labels_make_label_score_and_scores(api: Api) -> None:
    answer = await post(api, "/models/labelled/predict", {"input": [0, 1]})
    prediction = answer.json()["prediction"]
    wanted = np.exp([0, 2]) / np.exp([0, 2]).sum()
    assert prediction["label"] == "b"
    assert prediction["score"] == pytest.approx(wanted[1])
    assert prediction["scores"] == pytest.approx(wanted)


async def test_named_models_and_versions(api: Api) -> None:
    for path in ("/models/double/predict", "/models/double/versions/3/predict"):
        assert (await post(api, path, {"input": [1, 2]})).json()["version"] == 3
    for path in ("/models/nope/predict", "/models/double/versions/2/predict"):
        answer = await post(api, path, {"input": [1, 2]})
        assert (answer.status_code, answer.json()["code"]) == (404, "model_not_found")
    answer = await post(api, "/models/double/versions/3/batch-predict", {"inputs": [[1, 2]]})
    assert len(answer.json()["predictions"]) == 1


async def test_two_inputs_with_free_dimensions(api: Api) -> None:
    items = [
        {"a": [[0, 0], [1, 1]], "b": [[3, 4]]},
        {"a": [[0, 0]], "b": [[3, 4], [6, 8], [0, 1]]},
        {"a": [[0, 0], [1, 1]], "b": [[0, 0]]},
    ]
    answer = await post(api, "/models/pairwise/batch-predict", {"inputs": items})
    got = [p["outputs"]["distances"] for p in answer.json()["predictions"]]
    assert got == [[[25], [13]], [[25, 100, 1]], [[0], [2]]]


async def test_raw_bytes_in_and_out(api: Api) -> None:
    octets = {"content-type": "application/octet-stream", "accept": "application/octet-stream"}
    one = np.array([1.5, -2], "<f4")
    answer = await api.client.post("/predict", content=one.tobytes(), headers=octets)
    assert answer.headers["content-type"] == "application/octet-stream"
    np.testing.assert_array_equal(np.frombuffer(answer.content, "<f4"), one * 2)
    many = np.arange(6, dtype="<f4").reshape(3, 2)
    answer = await api.client.post("/batch-predict", content=many.tobytes(), headers=octets)
    got = np.frombuffer(answer.content, "<f4").reshape(3, 2)
    np.testing.assert_array_equal(got, many * 2)


async def test_npy_in_and_out(api: Api) -> None:
    many = np.arange(6, dtype=np.float64).reshape(3, 2)
    buffer = io.BytesIO()
    np.save(buffer, many)
    npy = {"content-type": "application/x-npy", "accept": "application/x-npy"}
    answer = await api.client.post("/batch-predict", content=buffer.getvalue(), headers=npy)
    np.testing.assert_array_equal(np.load(io.BytesIO(answer.content)), many * 2)
    answer = await api.client.post(
        "/batch-predict", content=buffer.getvalue(), headers={"content-type": "application/x-npy"}
    )
    assert answer.json()["predictions"][2] == {"outputs": {"y": [8.0, 10.0]}}


async def test_a_picture_as_base64_and_as_bytes_gives_one_answer(api: Api) -> None:
    info = (await api.client.get("/models/digits")).json()
    example = info["example"]
    as_json = await post(api, "/models/digits/predict", {"input": example})
    as_png = await api.client.post(
        "/models/digits/predict",
        content=base64.b64decode(example),
        headers={"content-type": "image/png"},
    )
    assert as_json.json()["prediction"]["label"] == "7"
    assert as_png.json() == as_json.json()
    assert as_png.headers["x-torchlane-cache"] == "hit"  # one input, however it came


async def test_a_failed_item_has_its_place_and_its_mates_their_answers(api: Api) -> None:
    inputs = [[1, 1], [500, 0], [-500, 0], [2, 2]]
    answer = await post(api, "/batch-predict", {"inputs": inputs})
    assert answer.status_code == 200
    got = answer.json()["predictions"]
    assert got[0] == {"outputs": {"y": [2, 2]}}
    assert got[1]["code"] == "backend_failed"
    assert got[2]["code"] == "non_finite_output"
    assert got[3] == {"outputs": {"y": [4, 4]}}
    assert "secret" not in answer.text


async def test_when_every_item_fails_the_request_does(api: Api) -> None:
    answer = await post(api, "/batch-predict", {"inputs": [[500, 0], [600, 0]]})
    assert (answer.status_code, answer.json()["code"]) == (500, "backend_failed")
    assert [detail["index"] for detail in answer.json()["details"]] == [0, 1]
    answer = await post(api, "/predict", {"input": [-500, 0]})
    assert (answer.status_code, answer.json()["code"]) == (500, "non_finite_output")


async def test_a_binary_answer_fails_with_any_of_its_items(api: Api) -> None:
    inputs = [[1, 1], [500, 0]]
    answer = await post(api, "/batch-predict", {"inputs": inputs}, accept="application/x-npy")
    assert (answer.status_code, answer.json()["code"]) == (500, "backend_failed")
    assert answer.json()["details"] == [{"index": 1, "code": "backend_failed"}]


@pytest.mark.parametrize(
    ("payload", "status", "code", "says"),
    [
        (b"{", 422, "invalid_input", "not JSON"),
        (b"[1,2]", 422, "invalid_input", '"input"'),
        (b'{"inputs": [[1,2]]}', 422, "invalid_input", "/batch-predict"),
        (b'{"input": [1,2], "x": 1}', 422, "invalid_input", "nothing else"),
        (b'{"input": [1,2,3]}', 422, "invalid_input", "[2]"),
        (b'{"input": [[1],[2,3]]}', 422, "invalid_input", "ragged"),
        (b'{"input": ["1","2"]}', 422, "invalid_input", "numbers"),
        (b'{"input": [1e300,2]}', 422, "invalid_input", "too large"),
        (b'{"input": null}', 422, "invalid_input", "null"),
        (b'{"input": [' + b"0," * 200_000 + b"0]}", 413, "payload_too_large", "200000"),
    ],
)
async def test_bad_bodies(api: Api, payload: bytes, status: int, code: str, says: str) -> None:
    json = {"content-type": "application/json"}
    answer = await api.client.post("/predict", content=payload, headers=json)
    body = answer.json()
    assert (answer.status_code, body["code"]) == (status, code)
    assert says in body["error"]
    assert set(body) == {"error", "code", "request_id", "details"}
    assert body["request_id"] == answer.headers["x-request-id"]


async def test_an_invalid_item_is_named_by_its_index(api: Api) -> None:
    answer = await post(api, "/batch-predict", {"inputs": [[1, 2], [3, 4], [5]]})
    assert answer.status_code == 422
    assert answer.json()["details"][0]["index"] == 2
    assert await api.metric("torchlane_items_computed_total", model="double") == 0


@pytest.mark.parametrize(
    ("path", "headers", "status", "code"),
    [
        ("/predict", {"content-type": "text/csv"}, 415, "unsupported_media_type"),
        ("/predict", {"content-type": "image/png"}, 415, "unsupported_media_type"),
        ("/models/two/predict", {"accept": "application/x-npy"}, 406, "not_acceptable"),
        ("/predict", {"x-torchlane-timeout-ms": "soon"}, 422, "invalid_input"),
        ("/predict", {"x-torchlane-timeout-ms": "-1"}, 422, "invalid_input"),
        ("/predict", {"x-torchlane-timeout-ms": "0.000001"}, 504, "deadline_exceeded"),
    ],
)
async def test_bad_headers(
    api: Api, path: str, headers: dict[str, str], status: int, code: str
) -> None:
    headers = {"content-type": "application/json", **headers}
    answer = await api.client.post(path, content=b'{"input": [7, 8]}', headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


@pytest.mark.parametrize("version", ["9" * 5000, "latest", "-1", "\u0663"])
async def test_a_version_that_is_none_is_not_found(api: Api, version: str) -> None:
    answer = await post(api, f"/models/double/versions/{version}/predict", {"input": [1, 2]})
    assert (answer.status_code, answer.json()["code"]) == (404, "model_not_found")


async def test_free_dimensions_have_a_limit(api: Api) -> None:
    many = [[0, 0]] * 257
    answer = await post(api, "/models/pairwise/predict", {"input": {"a": many, "b": [[1, 1]]}})
    assert answer.status_code == 422
    assert "0..256" in answer.json()["error"]


async def test_an_answer_has_a_limit(repository: Path) -> None:
    async with serving(repository, default_model="pairwise", max_answer_bytes=1000) as api:
        points = [[0, 0]] * 16
        answer = await post(api, "/predict", {"input": {"a": points, "b": points}})
        assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")
        answer = await post(api, "/predict", {"input": {"a": points, "b": points[:2]}})
        assert answer.status_code == 200


async def test_errors_do_not_echo_what_was_sent(api: Api) -> None:
    item = {"n" * 50_000: 1}
    answer = await post(api, "/models/pairwise/batch-predict", {"inputs": [item]})
    assert answer.status_code == 422
    assert len(answer.content) < 1000


async def test_too_many_items(api: Api) -> None:
    answer = await post(api, "/batch-predict", {"inputs": [[1, 2]] * 9})
    assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")


async def test_request_ids_are_kept_if_well_formed(api: Api) -> None:
    kept = await post(api, "/predict", {"input": [1, 2]}, **{"x-request-id": "abc-123"})
    assert kept.headers["x-request-id"] == "abc-123"
    made = await post(api, "/predict", {"input": [1, 2]}, **{"x-request-id": "a b\t<script>"})
    assert made.headers["x-request-id"] != "a b\t<script>"
    assert len(made.headers["x-request-id"]) == 16


async def test_unknown_paths_and_methods_have_the_one_error_shape(api: Api) -> None:
    for method, path, status in (("GET", "/nope", 404), ("GET", "/predict", 405)):
        answer = await api.client.request(method, path)
        assert answer.status_code == status
        assert set(answer.json()) == {"error", "code", "request_id", "details"}
    assert answer.headers["allow"] == "POST"


async def test_requests_and_items_are_counted_by_outcome(api: Api) -> None:
    await post(api, "/predict", {"input": [1, 2]})
    await post(api, "/predict", {"input": [1]})
    await post(api, "/batch-predict", {"inputs": [[1, 1], [500, 0]]})
    name = "torchlane_requests_total"
    assert await api.metric(name, route="/predict", status="200", code="ok") == 1
    assert await api.metric(name, route="/predict", status="422", code="invalid_input") == 1
    assert await api.metric("torchlane_items_total", model="double", outcome="ok") == 2
    assert await api.metric("torchlane_items_total", outcome="backend_failed") == 1
    assert await api.metric("torchlane_cache_entries") == 2
    assert await api.metric("torchlane_cache_bytes") > 0
