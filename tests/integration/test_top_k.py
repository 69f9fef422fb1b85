"""`?top_k=`: the highest scores only, of answers that are cached whole."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.codec_specs import TensorCodecSpec
from tests.artifacts import write_artifact
from tests.integration.harness import Api, serving

LABELS = ("a", "b")
BODY = {"input": [1, 2]}
WHOLE = pytest.approx([0.1192029, 0.8807971])  # softmax of 2 and 4
FIRST = {
    "label": "b",
    "score": WHOLE.expected[1],
    "scores": pytest.approx(WHOLE.expected[1:]),
    "labels": ["b"],
    "indices": [1],
}


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
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


async def test_a_large_top_k_returns_all_in_order(api: Api) -> None:
    for top_k in (2, 3, "9" * 18, "1" + "0" * 40):
        got = await predict(api, f"/predict?top_k={top_k}")
        assert (got["labels"], got["indices"]) == (["b", "a"], [1, 0])
        assert got["scores"] == pytest.approx(WHOLE.expected[::-1])


async def test_unlabelled_models_return_indices(api: Api) -> None:
    got = await predict(api, "/models/unlabelled/predict?top_k=1")
    assert got == {"outputs": {"y": FIRST["scores"]}, "indices": [1]}


async def test_the_caller_overrides_the_manifests_top_k(api: Api) -> None:
    assert (await predict(api, "/models/first/predict"))["labels"] == ["b"]
    assert (await predict(api, "/models/first/predict?top_k=2"))["labels"] == ["b", "a"]
    whole = await predict(api, "/predict")
    assert whole.keys() == {"label", "score", "scores"}
    assert whole["scores"] == WHOLE


async def test_binary_answers_always_contain_all_scores(api: Api) -> None:
    headers = {"Accept": "application/octet-stream"}
    for path in ("/models/whole/predict", "/models/first/predict"):
        answer = await api.client.post(path, json=BODY, headers=headers)
        assert np.frombuffer(answer.content, "<f4").tolist() == WHOLE
        rejected = await api.client.post(f"{path}?top_k=1", json=BODY, headers=headers)
        assert (rejected.status_code, rejected.json()["code"]) == (406, "not_acceptable")
        told = "can only be application/json: with top_k it has labels or indices"
        assert told in rejected.json()["error"]


async def test_another_top_k_is_a_cache_hit(api: Api) -> None:
    """Also the third time, when the memo has the body."""
    for time in range(3):
        for query in ("", "?top_k=1", "?top_k=2"):
            answer = await api.client.post(f"/predict{query}", json=BODY)
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


async def test_top_k_without_scores_is_rejected_before_running(api: Api) -> None:
    answer = await api.client.post("/models/bare/predict?top_k=1", json=BODY)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input")
    assert "this model has none" in answer.json()["error"]
    assert await api.metric("torchlane_items_computed_total") == 0


async def test_failures_keep_their_places(api: Api) -> None:
    body = {"inputs": [[1, 2], [500, 2], [2, 1]]}
    answer = await api.client.post("/batch-predict?top_k=1", json=body)
    first, failed, last = answer.json()["predictions"]
    assert (first["labels"], failed["code"], last["labels"]) == (["b"], "backend_failed", ["a"])
