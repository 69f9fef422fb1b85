"""The HTTP contract of the prediction routes, on tiny real models."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from models.codec_specs import TensorCodecSpec
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
    shutil.copytree(repository / "pairwise", tmp_path / "pairwise", copy_function=os.link)
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


async def test_a_repeated_input_is_a_cache_hit(api: Api) -> None:
    first = await post(api, "/predict", {"input": [1, 2]})
    again = await post(api, "/predict", {"input": [1.0, 2.0]})
    assert first.headers["x-torchlane-cache"] == "miss"
    assert again.headers["x-torchlane-cache"] == "hit"
    assert first.json() == again.json()


async def test_a_batch_keeps_order_and_computes_duplicates_once(api: Api) -> None:
    a, b = [1, 1], [2, 2]
    before = await api.metric("torchlane_items_computed_total", model="double")
    answer = await post(api, "/batch-predict", {"inputs": [a, b, a, a]})
    got = [p["outputs"]["y"] for p in answer.json()["predictions"]]
    assert got == [[2, 2], [4, 4], [2, 2], [2, 2]]
    assert answer.headers["x-torchlane-cache"] == "hit=0, miss=2, joined=2"
    assert await api.metric("torchlane_items_computed_total", model="double") - before == 2
    again = await post(api, "/batch-predict", {"inputs": [b, [3, 3]]})
    assert again.headers["x-torchlane-cache"] == "hit=1, miss=1, joined=0"


async def test_two_inputs_with_free_dimensions(api: Api) -> None:
    items = [
        {"a": [[0, 0], [1, 1]], "b": [[3, 4]]},
        {"a": [[0, 0]], "b": [[3, 4], [6, 8], [0, 1]]},
        {"a": [[0, 0], [1, 1]], "b": [[0, 0]]},
    ]
    answer = await post(api, "/models/pairwise/batch-predict", {"inputs": items})
    got = [p["outputs"]["distances"] for p in answer.json()["predictions"]]
    assert got == [[[25], [13]], [[25, 100, 1]], [[0], [2]]]


async def test_errors_do_not_echo_the_input(api: Api) -> None:
    item = {"n" * 50_000: 1}
    answer = await post(api, "/models/pairwise/batch-predict", {"inputs": [item]})
    assert answer.status_code == 422
    assert len(answer.content) < 1000


async def test_unknown_paths_and_methods_use_the_error_shape(api: Api) -> None:
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


async def test_free_dimensions_have_a_limit(api: Api) -> None:
    many = [[0, 0]] * 257
    answer = await post(api, "/models/pairwise/predict", {"input": {"a": many, "b": [[1, 1]]}})
    assert answer.status_code == 422
    assert "0..256" in answer.json()["error"]
