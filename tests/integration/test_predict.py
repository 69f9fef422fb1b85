"""The HTTP contract of the prediction routes, on tiny real models."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from tests.artifacts import small_answer, small_batch, write_artifact, write_small
from tests.integration.harness import Api, serving
from tests.integration.small import item

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Api]:
    tmp_path = tmp_path_factory.mktemp("models")
    write_artifact(tmp_path, "double", version=3)
    write_small(tmp_path, ["script"], free=True)
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
    batches = [
        {"picture": batch["picture"], "shift": batch["shift"][:, :size]}
        for size in (1, 2, 3)
        for batch in (small_batch(1, seed=size),)
    ]
    body = {"inputs": [item(batch, 0) for batch in batches]}
    answer = await post(api, "/models/small/batch-predict", body)
    got = [each["outputs"]["y"] for each in answer.json()["predictions"]]
    np.testing.assert_allclose(got, [small_answer(each)["y"][0] for each in batches], rtol=1e-4)


async def test_unknown_paths_and_methods_use_the_error_shape(api: Api) -> None:
    for method, path, status in (("GET", "/nope", 404), ("GET", "/predict", 405)):
        answer = await api.client.request(method, path)
        assert answer.status_code == status
        assert set(answer.json()) == {"error", "code", "request_id", "details"}
    assert answer.headers["allow"] == "POST"


async def test_items_are_counted_by_outcome(api: Api) -> None:
    async def counted() -> list[float]:
        name = "torchlane_items_total"
        outcomes = "ok", "backend_failed"
        return [await api.metric(name, model="double", outcome=each) for each in outcomes]

    before = await counted()
    await post(api, "/batch-predict", {"inputs": [[1, 1], [500, 0]]})
    after = await counted()
    assert [new - old for new, old in zip(after, before, strict=True)] == [1, 1]
