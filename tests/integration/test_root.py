"""POST / and GET /info, and which model a text call without one takes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from app.access.entries import make_key
from tests.integration.harness import Api, serving
from tests.kinds import write_pictures
from tests.text_models import LABELS, SIZE, write_text_model

pytestmark = pytest.mark.asyncio(loop_scope="module")
PIPELINE: dict[str, Any] = {"inputs": "cat", "parameters": {}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of pictures, and one of each task of texts."""
    made = tmp_path_factory.mktemp("models")
    write_pictures(made)
    write_text_model(made, "embed", "embed", SIZE)
    write_text_model(made, "classify", "classify", 3, scores="softmax", labels=LABELS)
    write_text_model(made, "rerank", "rerank", 1, scores="sigmoid")
    return made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(folder: Path) -> AsyncIterator[Api]:
    async with serving(folder, default_model="pictures", max_items=4) as found:
        yield found


async def ask(api: Api, path: str, **body: Any) -> Any:
    answer = await api.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_the_only_model_of_a_task_answers(api: Api) -> None:
    """The default model is for pictures."""
    for path, body in (
        ("/embed", {"inputs": "cat"}),
        ("/v1/embeddings", {"input": "cat"}),
        ("/classify", {"inputs": "cat"}),
        ("/rerank", {"query": "cat", "texts": ["dog", "cat"]}),
    ):
        named = {"/v1/embeddings": "embed"}.get(path, path[1:])
        assert await ask(api, path, **body) == await ask(api, path, **body, model=named)


async def test_the_root_answers_by_the_model(api: Api) -> None:
    vector, label = (
        await ask(api, "/embed", inputs="cat"),
        await ask(api, "/classify", inputs="cat"),
    )
    assert await ask(api, "/", inputs="cat") == vector
    assert await ask(api, "/", inputs=["cat", "cat"]) == vector * 2
    short = await ask(api, "/embed", inputs="cat", dimensions=2, normalize=False)
    assert await ask(api, "/", inputs="cat", dimensions=2, normalize=False) == short
    options = {"parameters": {"dimensions": 2, "normalize": False}, "model": "embed"}
    assert await ask(api, "/", inputs="cat", **options) == short
    assert await ask(api, "/", inputs="cat", model="classify") == label
    assert await ask(api, "/", inputs=[["cat"]], model="classify/1") == [label]


async def test_the_root_answers_pipelines(api: Api) -> None:
    label = await ask(api, "/classify", inputs="cat")
    assert await ask(api, "/", **PIPELINE) == [label]
    two = await ask(api, "/", inputs=["cat", "cat"], parameters={"top_k": 2})
    assert two == [label[:2]] * 2
    assert await ask(api, "/", inputs="cat", parameters={"function_to_apply": "softmax"}) == [label]


async def test_a_default_text_model_comes_first(folder: Path) -> None:
    async with serving(folder, default_model="classify") as api:
        assert {each["label"] for each in await ask(api, "/", inputs="cat")} == set(LABELS)
        # Fields of embeddings alone ask for embeddings, where the hub's clients have put them.
        short = await ask(api, "/embed", inputs="cat", dimensions=2)
        assert await ask(api, "/", inputs="cat", dimensions=2) == short
        assert await ask(api, "/", inputs="cat", parameters={"dimensions": 2}) == short
        assert len(await ask(api, "/embed", inputs="cat")) == 1
    async with serving(folder, default_model="embed") as api:
        assert len(await ask(api, "/", inputs="cat")) == 1
        assert {each["label"] for each in (await ask(api, "/", **PIPELINE))[0]} == set(LABELS)


async def test_of_several_models_one_must_be_named(folder: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_text_model(tmp_path, name, "embed", SIZE)
    write_pictures(tmp_path)
    async with serving(tmp_path, default_model="pictures") as api:
        for path in ("/embed", "/"):
            answer = await api.client.post(path, json={"inputs": "cat"})
            assert answer.status_code == 404
            told = (
                "several models are made to embed: name one in 'model', or set "
                "TORCHLANE_DEFAULT_MODEL; there are: one, two"
            )
            assert answer.json() == {"error": told, "error_type": "Validation"}
        info = await api.client.get("/info")
        assert (info.status_code, info.json()["error_type"]) == (404, "Validation")
        answer = await api.client.post("/rerank", json={"query": "a", "texts": ["b"]})
        assert "'pictures' is made for image inputs" in answer.json()["error"]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({}, 422, "'inputs' must be a string"),
        ({"inputs": ["cat"] * 5}, 413, "5 items in one request, the limit is 4"),
        ({"inputs": "cat", "parameters": []}, 422, "'parameters' must be an object, got a list"),
        ({"inputs": "cat", "parameters": {"top_k": 0}}, 422, "'top_k' must be"),
        ({"inputs": "cat", "parameters": {"top_n": 1}}, 422, "unknown parameter 'top_n'"),
        (
            {"inputs": "cat", "parameters": {"function_to_apply": "none"}},
            422,
            "'function_to_apply' must be softmax, because the model was exported so",
        ),
        (
            {"inputs": "cat", "parameters": {"inputs": "dog"}, "model": "embed"},
            422,
            "unknown parameter 'inputs'; this call has normalize",
        ),
        (
            {
                "inputs": "cat",
                "normalize": True,
                "parameters": {"normalize": False},
                "model": "embed",
            },
            422,
            "'normalize' is in the body and in its 'parameters': give it once",
        ),
        ({"inputs": "cat", "model": "rerank"}, 422, "is made to rerank; / needs"),
        ({"inputs": "cat", "model": "none"}, 404, "there is no model 'none'"),
    ],
)
async def test_mistakes(api: Api, body: Any, status: int, message: str) -> None:
    answer = await api.client.post("/", json=body)
    assert answer.status_code == status, answer.text
    assert answer.json() == {"error": answer.json()["error"], "error_type": "Validation"}
    assert message in answer.json()["error"]


async def test_info(folder: Path) -> None:
    kinds = {"embed": "embedding", "classify": "classifier", "rerank": "reranker"}
    for default, kind in kinds.items():
        async with serving(folder, default_model=default) as api:
            info = (await api.client.get("/info")).json()
        assert (info["model_id"], list(info["model_type"])) == (default, [kind])
        assert info["max_input_length"] == 8
        if default == "classify":
            assert info["model_type"][kind]["id2label"] == dict(enumerate_text(LABELS))
    async with serving(folder) as api:  # as POST / does, which prefers it
        assert (await api.client.get("/info")).json()["model_id"] == "embed"
        assert len(await ask(api, "/", inputs="cat")) == 1


def enumerate_text(labels: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(str(index), label) for index, label in enumerate(labels)]


async def test_keys(folder: Path) -> None:
    secret, line = make_key("mobile", ["predict"])
    async with serving(folder, default_model="embed", api_keys=line, page="on") as api:
        page = await api.client.get("/")
        assert page.headers["content-type"].startswith("text/html")
        headers = {"authorization": f"Bearer {secret}"}
        for method, path in (("POST", "/"), ("GET", "/info")):
            body = {"inputs": "cat"} if method == "POST" else None
            assert (await api.client.request(method, path, json=body)).status_code == 401
            answer = await api.client.request(method, path, json=body, headers=headers)
            assert answer.status_code == 200
