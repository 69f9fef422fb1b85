"""Outputs with as many rows as the model finds, in every protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from torch import nn

from models.codec_specs import TensorCodecSpec
from models.tensors import TensorSpec
from tests.artifacts import write_artifact
from tests.integration.harness import Api, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")
OUTPUTS = (
    TensorSpec(name="scores", dtype="float32", shape=(-1, 4), count="found"),
    TensorSpec(name="kinds", dtype="int64", shape=(-1, 4), count="found"),
    TensorSpec(name="found", dtype="int64", shape=(-1,)),
)
CODEC = TensorCodecSpec(labels=("even", "odd"), ranked_by="scores", classes="kinds", threshold=0.25)


class Rows(nn.Module):
    """x [n, 2]: as many rows as x[0] says, with scores of 1/8, 2/8 and so on."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        places = torch.arange(1, 5, device=x.device).unsqueeze(0).expand(x.shape[0], 4)
        return places / 8, places % 2, x[:, 0].to(torch.int64)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Api]:
    tmp_path = tmp_path_factory.mktemp("models")
    write_artifact(tmp_path, "rows", module=Rows(), outputs=OUTPUTS, codec=CODEC)
    one = (OUTPUTS[0], OUTPUTS[2])
    write_artifact(tmp_path, "one", module=One(), outputs=one)
    async with serving(tmp_path, default_model="rows") as api:
        yield api


class One(Rows):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        places = torch.arange(1, 5, device=x.device).unsqueeze(0).expand(x.shape[0], 4)
        return places / 8, x[:, 0].to(torch.int64)


def best(*scores: float) -> dict[str, Any]:
    kinds = [int(8 * score) % 2 for score in scores]
    labels = [CODEC.labels[kind] for kind in kinds] if CODEC.labels else []
    return {"outputs": {"scores": list(scores), "kinds": kinds}, "labels": labels}


async def test_each_item_has_its_own_rows(api: Api) -> None:
    body = {"inputs": [[3, 0], [0, 0], [9, 0], [3, 1]]}
    got = (await api.client.post("/batch-predict", json=body)).json()["predictions"]
    assert got == [best(0.375, 0.25), best(), best(0.5, 0.375, 0.25), best(0.375, 0.25)]


async def test_an_array_contains_only_the_counted_rows(api: Api) -> None:
    headers = {"Accept": "application/octet-stream"}
    got = await api.client.post("/models/one/predict", json={"input": [3, 0]}, headers=headers)
    assert np.frombuffer(got.content, "<f4").tolist() == [0.125, 0.25, 0.375]
    many = {"inputs": [[3, 0], [1, 0]]}
    got = await api.client.post("/models/one/batch-predict", json=many, headers=headers)
    assert (got.status_code, got.json()["code"]) == (406, "not_acceptable")


async def test_open_inference_tensors_keep_all_rows(api: Api) -> None:
    tensor = {"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [3, 0, 1, 0]}
    got = (await api.client.post("/v2/models/rows/infer", json={"inputs": [tensor]})).json()
    data = {each["name"]: (each["shape"], each["data"]) for each in got["outputs"]}
    assert data["scores"] == ([2, 4], [0.125, 0.25, 0.375, 0.5] * 2)
    assert data["found"] == ([2], [3, 1])
