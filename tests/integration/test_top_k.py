"""`?top_k=`: the highest scores only, of answers that are cached whole."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from models.codec_specs import TensorCodecSpec
from tests.artifacts import write_artifact
from tests.integration.harness import Api, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")
LABELS = ("a", "b")
BODY = {"input": [1, 2]}
NEW = {"input": [3, 4]}  # of the same softmax
WHOLE = pytest.approx([0.1192029, 0.8807971])  # softmax of 2 and 4
FIRST = {
    "label": "b",
    "score": WHOLE.expected[1],
    "scores": pytest.approx(WHOLE.expected[1:]),
    "labels": ["b"],
    "indices": [1],
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Api]:
    tmp_path = tmp_path_factory.mktemp("models")
    codec = TensorCodecSpec(labels=LABELS, scores="softmax")
    write_artifact(tmp_path, "whole", codec=codec)
    write_artifact(tmp_path, "first", codec=codec.model_copy(update={"top_k": 1}))
    write_artifact(tmp_path, "unlabelled", codec=TensorCodecSpec(scores="softmax"))
    write_artifact(tmp_path, "bare")
    async with serving(tmp_path, default_model="whole") as api:
        yield api


async def predict(api: Api, path: str, **headers: str) -> Any:
    answer = await api.client.post(path, json=BODY, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()["prediction"]


async def test_only_the_highest_scores_are_returned(api: Api) -> None:
    for query in ("top_k=1", "top_k=001", "&top_k=1&", "top%5Fk=%31"):
        got = await predict(api, f"/predict?{query}")
        assert got == {**FIRST, "score": pytest.approx(0.8807971)}, query


async def test_the_caller_overrides_the_manifests_top_k(api: Api) -> None:
    assert (await predict(api, "/models/first/predict"))["labels"] == ["b"]
    assert (await predict(api, "/models/first/predict?top_k=2"))["labels"] == ["b", "a"]
    whole = await predict(api, "/predict")
    assert whole.keys() == {"label", "score", "scores"}
    assert whole["scores"] == WHOLE


async def test_another_top_k_is_a_cache_hit(api: Api) -> None:
    """Also the third time, when the memo has the body."""
    for time in range(3):
        for query in ("", "?top_k=1", "?top_k=2"):
            answer = await api.client.post(f"/predict{query}", json=NEW)
            hit = "hit" if time or query else "miss"
            assert answer.headers["x-torchlane-cache"] == hit
            labels = {"": None, "?top_k=1": ["b"], "?top_k=2": ["b", "a"]}[query]
            assert answer.json()["prediction"].get("labels") == labels


async def test_an_invalid_top_k_is_rejected(api: Api) -> None:
    texts = ("0", "-1", "5.0", "", "all", "+5", "1e2", "0x1", "%D9%A1")
    cases = {f"top_k={text}": "must be a whole number" for text in texts}
    cases["top_k=1&top_k=1"] = "has top_k 2 times; set it once"
    cases["&".join("a=b" for _ in range(101))] = "more than 100 query parameters"
    for query, told in cases.items():
        answer = await api.client.post(f"/predict?{query}", json=BODY)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input"), query
        assert told in answer.json()["error"]
