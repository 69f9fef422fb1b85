"""Unknown query parameters are refused by every protocol, in its own form."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.artifacts import write_artifact
from tests.integration.harness import Api, serving
from tests.text_models import write_text_models

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Api]:
    folder: Path = tmp_path_factory.mktemp("models")
    write_text_models(folder)
    write_artifact(folder, "double")
    async with serving(folder, default_model="double") as found:
        yield found


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("POST /predict?topk=3", "'topk': this call has only top_k, pictures; did you mean top_k?"),
        ("POST /predict?partial=true", "'partial': this call has only top_k, pictures"),
        ("POST /batch-predict?threshold=0.9", "'threshold': this call has only top_k"),
        ("POST /models/double/predict?top_k=1&format=png", "'format': this call has only"),
        ("POST /v2/models/double/infer?top_k=1", "'top_k': this call has none"),
        ("POST /predictions/double?top_k=1", "'top_k': this call has none"),
        ("POST /v1/embeddings?dimensions=3", "'dimensions': this call has none"),
        ("POST /embed?truncate=true", "'truncate': this call has none"),
        ("POST /rerank?top_n=2", "'top_n': this call has none"),
        ("POST /classify?top_k=2", "'top_k': this call has none"),
        ("GET /models?ful=true", "'ful': this call has only full; did you mean full?"),
        ("GET /models/double?x=1", "'x': this call has only full, version"),
        ("GET /v2?x=1", "'x': this call has none"),
        ("GET /v2/models/double?version=1", "'version': this call has none"),
        ("POST /v2/repository/index?ready=true", "'ready': this call has none"),
        ("GET /v1/models?limit=2", "'limit': this call has none"),
    ],
)
async def test_unknown_parameter_is_refused(api: Api, call: str, told: str) -> None:
    method, path = call.split()
    content = b"" if method == "GET" else b'{"input": [1, 2]}'
    answer = await api.client.request(method, path, content=content)
    assert answer.status_code == 400, answer.text
    assert f"unknown query parameter {told}" in answer.text


async def test_question_mark_alone_is_no_parameter(api: Api) -> None:
    answer = await api.client.post("/predict?", json={"input": [1, 2]})
    assert answer.status_code == 200
    assert (await api.client.get("/v1/models?")).status_code == 200
