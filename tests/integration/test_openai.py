"""OpenAI's calls, and infinity's that are like them: what clients send, and what they read."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from app.access.entries import make_key
from tests.artifacts import write_artifact
from tests.integration.harness import Api, serving
from tests.integration.listening import listening
from tests.integration.wire import WireAnswer, request
from tests.text_models import SIZE, write_text_models
from tests.texts import IDS, MAX_TOKENS

CALL = "/v1/embeddings"
CAT = [IDS[each] for each in ("[CLS]", "cat", "[SEP]")]
DOG = [IDS[each] for each in ("[CLS]", "dog", "[SEP]")]
COMPUTED = "torchlane_items_computed_total"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_text_models(folder)
    write_artifact(folder, "double")
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(models: Path) -> AsyncIterator[Api]:
    async with serving(models, default_model="embed", versions="all") as found:
        yield found


async def embed(api: Api, given: Any, path: str = CALL, **more: Any) -> Any:
    answer = await api.client.post(path, json={"input": given, "model": "embed", **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


def vectors(answer: Any) -> Any:
    return np.array([each["embedding"] for each in answer["data"]], np.float32)


async def refused(api: Api, body: Any, status: int = 400, path: str = CALL) -> Any:
    """The error that a body brings."""
    content = body if isinstance(body, bytes) else json.dumps(body)
    answer = await api.client.post(path, content=content)
    assert answer.status_code == status, answer.text
    assert list(answer.json()) == ["error"]
    error = answer.json()["error"]
    assert list(error) == ["message", "type", "param", "code"]
    return error


@pytest.mark.asyncio(loop_scope="module")
class TestEmbeddings:
    async def test_a_text(self, api: Api) -> None:
        answer = await embed(api, "cat")
        native = await api.client.post("/models/embed/predict", json={"input": "cat"})
        vector = native.json()["prediction"]["outputs"]["out"]
        assert answer == {
            "object": "list",
            "data": [{"object": "embedding", "index": 0, "embedding": vector}],
            "model": "embed/2",
            "usage": {"prompt_tokens": 3, "total_tokens": 3},
        }

    @pytest.mark.parametrize(
        ("given", "tokens"),
        [
            (["cat", "dog a", "cat"], 3 + 4 + 3),
            ([CAT, [*DOG[:2], IDS["a"], DOG[2]], CAT], 3 + 4 + 3),  # their tokens
        ],
    )
    async def test_several_texts_keep_their_order(self, api: Api, given: Any, tokens: int) -> None:
        answer = await embed(api, given)
        assert [each["index"] for each in answer["data"]] == [0, 1, 2]
        alone = [vectors(await embed(api, each))[0] for each in ("cat", "dog a", "cat")]
        assert np.array_equal(vectors(answer), alone)
        assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}

    async def test_base64_has_the_same_numbers(self, api: Api) -> None:
        plain = await embed(api, ["cat", "dog"], encoding_format="float")
        coded = await embed(api, ["cat", "dog"], encoding_format="base64")
        found = [np.frombuffer(base64.b64decode(e["embedding"]), "<f4") for e in coded["data"]]
        assert np.array_equal(found, vectors(plain))
        assert {**coded, "data": 0} == {**plain, "data": 0}

    async def test_dimensions_shorten_and_normalise(self, api: Api) -> None:
        whole = vectors(await embed(api, "cat dog"))[0]
        for size in (1, SIZE):
            short = vectors(await embed(api, "cat dog", dimensions=size, user="me"))[0]
            assert len(short) == size
            assert np.allclose(short, whole[:size] / np.linalg.norm(whole[:size]), atol=1e-6)

    async def test_cut_tokens_are_reported(self, api: Api) -> None:
        answer = await embed(api, ["cat", "cat " * 100])
        assert [each.get("details") for each in answer["data"]] == [
            None,
            {"tokens": MAX_TOKENS, "cut": 102 - MAX_TOKENS},
        ]
        assert answer["usage"]["prompt_tokens"] == 3 + MAX_TOKENS

    @pytest.mark.parametrize(
        ("more", "model"),
        [
            ({"model": "embed/1"}, "embed/1"),
            ({"model": "embed"}, "embed/2"),
            ({}, "embed/2"),
            ({"model": None}, "embed/2"),
            ({"model": "default/not-specified"}, "embed/2"),
        ],
    )
    async def test_the_model_is_the_named_or_the_default_one(
        self, api: Api, more: Any, model: str
    ) -> None:
        answer = await api.client.post(CALL, json={"input": "cat", **more})
        assert answer.json()["model"] == model

    async def test_infinitys_call_ignores_unknown_fields(self, api: Api) -> None:
        expected = await embed(api, "cat")
        sent = {"modality": "text", "dimensions": 0, "another": 1}
        assert await embed(api, "cat", "/embeddings", **sent) == expected
        error = await refused(api, {"input": "cat", "modality": "image"}, path="/embeddings")
        assert error["param"] == "modality"

    @pytest.mark.parametrize(
        ("body", "param", "message"),
        [
            (b"cat", None, "not JSON"),
            (b'["cat"]', None, "JSON object"),
            ({"input": ""}, "input", "empty"),
            ({"input": ["cat", ""]}, "input", "empty"),
            ({"input": [CAT, []]}, "input", "empty"),
            ({"input": 1}, "input", "must be a string"),
            ({"input": ["cat", 1]}, "input", "must be a string"),
            ({"input": [1, "cat"]}, "input", ""),
            ({"input": ["cat", [len(IDS)]]}, "input", "input[1]: "),
            ({"input": [-1]}, "input", "input: "),
            ({"input": ["cat"] * 2049}, "input", "2049"),
            ({"input": "cat", "dimensions": 5}, "dimensions", "1 to 4"),
            ({"input": "cat", "dimensions": True}, "dimensions", "1 to 4"),
            ({"input": "cat", "encoding_format": "hex"}, "encoding_format", "float, base64"),
            ({"input": "cat", "dimensions": [1] * 9}, "dimensions", "vectors, got a list"),
            ({"input": "cat", "user": ["me"]}, "user", "a string, got a list"),
            ({"input": ["cat", [4] * 9]}, "input", "'input[1]' has 9 token ids, the limit"),
            ({"input": "cat", "model": 1}, "model", "string"),
            ({"input": "cat", "truncate": True}, None, "Unrecognized request argument"),
            ({"input": [0.5, 1], "model": "double"}, "model", "text model made to embed"),
            ({"input": "cat", "model": "classify"}, "model", "is made to classify"),
        ],
    )
    async def test_mistakes(self, api: Api, body: Any, param: str | None, message: str) -> None:
        error = await refused(api, body)
        assert (error["type"], error["param"]) == ("invalid_request_error", param)
        assert message in error["message"]

    @pytest.mark.parametrize("model", ["embed/9", "a/b", "", "x" * 100])
    async def test_an_unknown_model(self, api: Api, model: str) -> None:
        error = await refused(api, {"input": "cat", "model": model}, 404)
        assert (error["type"], error["code"]) == ("invalid_request_error", "model_not_found")
        assert len(error["message"]) < 300

    async def test_too_many_items_or_bytes(self, api: Api) -> None:
        error = await refused(api, {"input": ["cat"] * 1025}, 413)
        assert error["code"] == "payload_too_large"
        await refused(api, {"input": "c" * (2 << 20)}, 413)
        fields = dict.fromkeys(map(str, range(30_000)))
        users: list[Any] = [[[]] * 30_000, [1] * 400_000, fields]
        for user in users:
            error = await refused(api, {"input": ["cat"], "user": user}, 413)
            assert "lists, objects and fields" in error["message"]
        assert "300 token ids" in (await refused(api, {"input": [2] * 300}))["message"]

    async def test_a_compressed_body(self, api: Api) -> None:
        coded = {"content-encoding": "gzip"}
        body = json.dumps({"input": "cat", "model": "embed"}).encode()
        answer = await api.client.post(CALL, content=gzip.compress(body), headers=coded)
        assert answer.json() == await embed(api, "cat")
        large = json.dumps({"input": "cat " * 50_000}).encode()
        answer = await api.client.post(CALL, content=gzip.compress(large), headers=coded)
        assert answer.status_code == 413
        assert "without Content-Encoding" in answer.json()["error"]["message"]

    async def test_other_paths_use_the_same_error_shape(self, api: Api) -> None:
        answer = await api.client.post("/v1/chat/completions", json={})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
        answer = await api.client.get(CALL)
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
        assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.asyncio(loop_scope="module")
class TestModels:
    async def test_all(self, api: Api) -> None:
        answer = (await api.client.get("/v1/models")).json()
        assert answer["object"] == "list"
        names = ["classify", "double", "embed", "logits", "rerank"]
        assert sorted(each["id"] for each in answer["data"]) == names

    async def test_one(self, api: Api) -> None:
        for name in ("embed", "embed/1", "embed%2F1"):
            answer = (await api.client.get(f"/v1/models/{name}")).json()
            assert answer["id"] == name.replace("%2F", "/")
            assert (answer["object"], answer["owned_by"]) == ("model", "torchlane")
            assert answer["created"] > 1.7e9
        for name in ("none", "embed/9", "a/b/c", ""):
            unknown = await api.client.get(f"/v1/models/{name}")
            assert unknown.status_code == 404
            assert unknown.json()["error"]["code"] == "model_not_found"


class TestOneDataPlane:
    async def test_equal_texts_are_computed_once_across_calls(self, models: Path) -> None:
        async with serving(models, default_model="embed") as api:
            before = await api.metric(COMPUTED)
            await api.client.post("/predict", json={"input": "new cat"})
            await embed(api, ["new cat", "new dog", "new cat"])
            answer = await api.client.post(CALL, json={"input": "new dog", "model": "embed"})
            assert answer.headers["x-torchlane-cache"] == "hit=1, miss=0, joined=0"
            await api.client.post("/embed", json={"inputs": "new dog"})
            await api.client.post("/predict", json={"input": "new dog"})
            assert await api.metric(COMPUTED) - before == 2

    async def test_the_body_limit_applies_to_compressed_bodies(self, models: Path) -> None:
        body = json.dumps({"input": "cat " * 5000, "model": "embed"}).encode()
        coded = {"content-encoding": "gzip"}
        async with serving(models, default_model="embed", max_body_bytes=10_000) as api:
            for path in (CALL, "/embed"):
                answer = await api.client.post(path, content=gzip.compress(body), headers=coded)
                assert answer.status_code == 413

    async def test_equal_bodies_of_different_calls_are_distinguished(self, models: Path) -> None:
        async with serving(models, default_model="logits") as api:
            body = {"input": ["cat"]}
            for _ in range(3):
                labels = await api.client.post("/classify", json=body)
                other = await api.client.post("/embeddings", json={**body, "model": "embed"})
                assert labels.json()["object"] == "classify"
                assert other.json()["object"] == "list"


PREDICT, PREDICT_LINE = make_key("mobile", ["predict"])
OTHER, OTHER_LINE = make_key("other", ["predict"])
SLOW, SLOW_LINE = make_key("slow", ["predict"], "2/minute")
METRICS, METRICS_LINE = make_key("prometheus", ["metrics"])
KEYS = ";".join((PREDICT_LINE, OTHER_LINE, SLOW_LINE, METRICS_LINE))
ONLY = '[models.embed]\nallowed_keys = ["mobile", "slow"]\n'


async def test_keys(models: Path, tmp_path: Path) -> None:
    settings = tmp_path / "models.toml"
    settings.write_text(ONLY)
    async with listening(
        models, default_model="embed", api_keys=KEYS, models_file=settings
    ) as server:

        async def ask(key: str, body: bytes = b'{"input": "cat"}') -> WireAnswer:
            head: dict[str, Any] = {"authorization": f"Bearer {key}"} if key else {}
            return await server.ask(request(CALL, body, **head))

        assert (await ask(PREDICT)).status == 200
        for key, status, code in (
            ("", 401, "invalid_api_key"),
            ("wrong", 401, "invalid_api_key"),
            (METRICS, 403, "forbidden"),
            (OTHER, 403, "forbidden"),
        ):
            answer = await ask(key)
            assert (answer.status, answer.json()["error"]["code"]) == (status, code)
        answer = await ask(OTHER, b'{"input": "", "dimensions": 99}')
        assert answer.status == 403  # before anything else is looked at
        two = b'{"input": ["cat", "dog"]}'
        assert (await ask(SLOW, two)).status == 200
        answer = await ask(SLOW)
        assert (answer.status, answer.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert answer.json()["error"]["type"] == "rate_limit_error"
        assert int(answer["retry-after"]) * 1000 >= float(answer["retry-after-ms"]) > 0
        for path in ("/v1/models", "/v1/models/embed"):
            assert (await server.ask(request(path, b"", method="GET"))).status == 401


async def test_a_deadline_that_cannot_be_met(models: Path) -> None:
    async with serving(models, default_model="embed") as api:
        late = {"x-torchlane-timeout-ms": "0.001"}
        answer = await api.client.post(CALL, json={"input": "cat"}, headers=late)
        assert answer.status_code == 504
        assert answer.json()["error"] == {
            "message": answer.json()["error"]["message"],
            "type": "server_error",
            "param": None,
            "code": "deadline_exceeded",
        }
