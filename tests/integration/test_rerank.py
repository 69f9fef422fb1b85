"""/rerank, /classify and /embed: requests as TEI and infinity document them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from tests.integration.harness import Api, serving
from tests.text_models import LABELS, write_text_models
from tests.texts import IDS, MAX_TOKENS

pytestmark = pytest.mark.asyncio(loop_scope="module")
TEXTS = ["dog", "cat", "a new cat", "london"]
LONG = "cat " * 100


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Api]:
    folder = tmp_path_factory.mktemp("models")
    write_text_models(folder)
    async with serving(folder, default_model="embed") as found:
        yield found


async def ask(api: Api, path: str, **body: Any) -> Any:
    answer = await api.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def refused(api: Api, path: str, status: int = 422, **body: Any) -> str:
    """The message of TEI's error that a body brings."""
    answer = await api.client.post(path, json=body)
    assert answer.status_code == status, answer.text
    assert list(answer.json()) == ["error", "error_type"]
    assert answer.json()["error_type"] == "Validation"
    return str(answer.json()["error"])


async def native(api: Api, model: str, item: Any) -> Any:
    return (await ask(api, f"/models/{model}/predict", input=item))["prediction"]


async def pair_scores(api: Api, query: str) -> list[float]:
    found = [await native(api, "rerank", [query, text]) for text in TEXTS]
    return [each["outputs"]["out"][0] for each in found]


class TestRerank:
    async def test_the_tei_format(self, api: Api) -> None:
        scores = await pair_scores(api, "cat")
        answer = await ask(api, "/rerank", model="rerank", query="cat", texts=TEXTS)
        assert [list(each) for each in answer] == [["index", "score"]] * len(TEXTS)
        assert {each["index"]: each["score"] for each in answer} == dict(enumerate(scores))
        found = [each["score"] for each in answer]
        assert found == sorted(found, reverse=True)
        assert len(set(found)) > 2

    async def test_with_texts_and_raw_scores(self, api: Api) -> None:
        sent = {"model": "rerank", "query": "cat", "texts": TEXTS, "return_text": True}
        plain = await ask(api, "/rerank", **sent)
        raw = await ask(api, "/rerank", **sent, raw_scores=True, truncate=True)
        assert [each["text"] for each in plain] == [TEXTS[each["index"]] for each in plain]
        assert [each["index"] for each in raw] == [each["index"] for each in plain]
        scores = np.array([each["score"] for each in raw])
        assert np.allclose(1 / (1 + np.exp(-scores)), [each["score"] for each in plain], atol=1e-6)

    async def test_the_infinity_format(self, api: Api) -> None:
        tei = await ask(api, "/rerank", model="rerank", query="cat", texts=TEXTS)
        sent = {"model": "rerank", "query": "cat", "documents": TEXTS, "raw_scores": False}
        answer = await ask(api, "/rerank", **sent, return_documents=True, top_n=None)
        assert {key: answer[key] for key in ("object", "model")} == {
            "object": "rerank",
            "model": "rerank/1",
        }
        assert answer["results"] == [
            {"index": e["index"], "relevance_score": e["score"], "document": TEXTS[e["index"]]}
            for e in tei
        ]
        tokens = sum(3 + 1 + len(text.split()) for text in TEXTS)
        assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
        best = await ask(api, "/rerank", **sent, top_n=2)
        assert [each["index"] for each in best["results"]] == [each["index"] for each in tei[:2]]
        assert "document" not in best["results"][0]

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            ({"texts": TEXTS}, "'query' must be a string"),
            ({"query": "cat"}, "'texts' must be"),
            ({"query": "cat", "documents": ["cat", 1]}, "'documents' must be"),
            ({"query": "cat", "documents": TEXTS, "top_n": 0}, "'top_n' must be"),
            ({"query": "cat", "documents": TEXTS, "top_n": [1] * 99}, "at least 1, got a list"),
            ({"query": "cat", "texts": TEXTS, "documents": TEXTS}, "'documents', not both"),
            ({"query": "cat", "texts": TEXTS, "raw_scores": 1}, "'raw_scores' must be"),
            ({"query": "cat", "texts": ["cat", LONG], "truncate": False}, "texts[1]: 104 tokens"),
            ({"query": "cat", "texts": TEXTS, "truncation_direction": "Left"}, "Right"),
            ({"query": "cat", "texts": TEXTS, "model": "embed"}, "is made to embed"),
        ],
    )
    async def test_mistakes(self, api: Api, body: Any, message: str) -> None:
        assert message in await refused(api, "/rerank", **{"model": "rerank", **body})

    async def test_usage_includes_cut_tokens(self, api: Api) -> None:
        sent = {"model": "rerank", "query": "cat", "documents": ["dog", LONG]}
        usage = (await ask(api, "/rerank", **sent))["usage"]
        tokens = 5 + MAX_TOKENS
        assert usage == {"prompt_tokens": tokens, "total_tokens": tokens, "cut_tokens": 104 - 8}

    @pytest.mark.parametrize(
        ("path", "name"), [("/rerank", "texts"), ("/classify", "inputs"), ("/embed", "inputs")]
    )
    async def test_items_are_counted_before_they_are_validated(
        self, api: Api, path: str, name: str
    ) -> None:
        sent = {"model": path[1:], "query": "cat", name: ["cat"] * 1500 + [None]}
        message = await refused(api, path, 413, **sent)
        assert message == "1501 items in one request, the limit is 1024; split it"

    async def test_an_unknown_model(self, api: Api) -> None:
        sent = {"query": "cat", "texts": TEXTS, "model": "none"}
        assert "none" in await refused(api, "/rerank", 404, **sent)


class TestClassify:
    async def test_the_infinity_format(self, api: Api) -> None:
        answer = await ask(api, "/classify", model="classify", input=["cat", "london dog"])
        assert {**answer, "data": 0} == {
            "object": "classify",
            "data": 0,
            "model": "classify/1",
            "usage": {"prompt_tokens": 7, "total_tokens": 7},
        }
        for text, found in zip(("cat", "london dog"), answer["data"], strict=True):
            scores = (await native(api, "classify", text))["scores"]
            assert {each["label"]: each["score"] for each in found} == dict(
                zip(LABELS, scores, strict=True)
            )
            best = [each["score"] for each in found]
            assert best == sorted(best, reverse=True)

    async def test_the_tei_format(self, api: Api) -> None:
        batch = (await ask(api, "/classify", model="classify", input=["cat", "dog"]))["data"]
        assert await ask(api, "/classify", model="classify", inputs="cat") == batch[0]
        assert await ask(api, "/classify", model="classify", inputs=["cat"]) == batch[0]
        assert await ask(api, "/classify", model="classify", inputs=[["cat"], ["dog"]]) == batch

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            ({}, "'inputs' must be"),
            ({"input": "cat"}, "'input' must be a list"),
            ({"inputs": ["a", "b", "cat"]}, "'inputs' must be"),
            ({"inputs": [["a"], "b"]}, "'inputs' must be"),
            ({"inputs": ["cat", "dog"]}, "got two texts"),
            ({"input": ["cat"], "inputs": "cat"}, "'input', not both"),
            ({"input": ["cat"], "raw_scores": True}, "softmax"),
            ({"input": ["cat", LONG], "truncate": False}, "input[1]: 102 tokens, the limit"),
            ({"input": ["cat"], "model": "rerank"}, "is made to rerank"),
        ],
    )
    async def test_mistakes(self, api: Api, body: Any, message: str) -> None:
        assert message in await refused(api, "/classify", **{"model": "classify", **body})

    async def test_labels_per_request_are_limited(
        self, api: Api, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("app.api.outcomes.MAX_CLASSES", 2 * len(LABELS))
        sent = {"model": "classify", "input": ["cat"] * 3}
        message = await refused(api, "/classify", 413, **sent)
        assert message == "9 classes of 3 items, the limit is 6; send fewer texts at once"
        await ask(api, "/classify", model="classify", input=["cat"] * 2)

    async def test_raw_scores_of_a_model_with_logits(self, api: Api) -> None:
        sent = {"model": "logits", "input": ["cat"]}
        raw = await ask(api, "/classify", **sent, raw_scores=True)
        assert raw["data"] == (await ask(api, "/classify", **sent))["data"]


class TestEmbed:
    async def test_vectors(self, api: Api) -> None:
        expected = [(await native(api, "embed", each))["outputs"]["out"] for each in ("cat", "dog")]
        assert await ask(api, "/embed", inputs=["cat", "dog"], normalize=False) == expected
        assert np.allclose(await ask(api, "/embed", inputs=["cat", "dog"]), expected, atol=1e-6)
        assert await ask(api, "/embed", inputs="cat", normalize=False) == expected[:1]
        ids = [IDS["[CLS]"], IDS["dog"], IDS["[SEP]"]]
        assert await ask(api, "/embed", inputs=[ids], normalize=False) == expected[1:]

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            ({}, "'inputs' must be"),
            ({"inputs": ""}, "empty"),
            ({"inputs": "cat", "dimensions": 0}, "'dimensions' must be"),
            ({"inputs": "cat", "prompt_name": "query"}, "'prompt_name'"),
            (
                {"inputs": LONG, "truncate": False},
                f"102 tokens, the limit of the model is {MAX_TOKENS}",
            ),
            ({"inputs": "cat", "truncate": "yes"}, "'truncate' must be"),
        ],
    )
    async def test_mistakes(self, api: Api, body: Any, message: str) -> None:
        assert message in await refused(api, "/embed", **body)
