"""Accept, for every protocol's predictions: what cannot be met is 406, before it is computed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.artifacts import write_artifact
from tests.integration.listening import Listening, listening
from tests.integration.wire import request
from tests.text_models import write_text_models

pytestmark = pytest.mark.asyncio(loop_scope="module")
TENSOR = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
JSON, OCTETS = "application/json", "application/octet-stream"
VARY = "Accept, Accept-Encoding"


def sent(path: str, body: object, **headers: Any) -> dict[str, Any]:
    return {"path": path, "body": json.dumps(body).encode(), **headers}


INFER, BINARY = (
    sent("/v2/models/double/infer", {"inputs": [TENSOR], **more})
    for more in ({}, {"parameters": {"binary_data_output": True}})
)
# Calls whose answers are only JSON, or only binary.
CALLS = {
    "infer": (INFER, JSON),
    "infer, binary": (BINARY, OCTETS),
    "infer, one binary": (
        sent(
            "/v2/models/double/infer",
            {"inputs": [TENSOR], "outputs": [{"name": "y", "parameters": {"binary_data": True}}]},
        ),
        OCTETS,
    ),
    "infer, raw": (
        {
            "path": "/v2/models/double/infer",
            "body": bytes(8),
            "inference_header_content_length": "0",
        },
        OCTETS,
    ),
    "TorchServe": (sent("/predictions/double", [1, 2]), JSON),
    "OpenAI": (sent("/v1/embeddings", {"model": "embed", "input": "a"}), JSON),
    "TEI": (sent("/embed", {"model": "embed", "inputs": "a"}), JSON),
    "rerank": (sent("/rerank", {"model": "rerank", "query": "a", "texts": ["b"]}), JSON),
    "classify": (sent("/classify", {"model": "classify", "inputs": "a"}), JSON),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Listening]:
    folder = tmp_path_factory.mktemp("models")
    write_text_models(folder)
    write_artifact(folder, "double")
    async with listening(folder, default_model="double") as made:
        yield made


@pytest.mark.parametrize("call", CALLS)
async def test_what_cannot_be_met(server: Listening, call: str) -> None:
    given, written = CALLS[call]
    other = OCTETS if written == JSON else JSON
    for accept in ("*/*", written, f"text/html, {written};q=0.1", "application/*"):
        answer = await server.ask(request(**given, accept=accept))
        assert (answer.status, answer["content-type"]) == (200, written)
        assert answer["vary"] == VARY
    # The answer is in the memo by now, if the protocol has one.
    for accept in ("text/html", other, f"*/*, {written};q=0"):
        refused = await server.ask(request(**given, accept=accept))
        assert refused.status == 406, accept
        assert refused["content-type"] == JSON
        assert refused["vary"] == VARY
        assert f"can only be {written}" in refused.body.decode()


async def test_all_lines_count_on_every_path(server: Listening) -> None:
    """Also if the head repeats, so that it is not parsed again."""
    raw = request(accept="text/html").replace(
        b"accept: text/html\r\n", b"accept: application/x-npy\r\naccept: text/html\r\n"
    )
    assert raw.count(b"accept: ") == 2
    wire = await server.connect()
    for _ in range(3):
        assert (await wire.ask(raw))["content-type"] == "application/x-npy"
    by_asgi = raw.replace(b"accept: text", b"expect: 100-continue\r\naccept: text")
    assert (await server.ask(by_asgi))["content-type"] == "application/x-npy"
