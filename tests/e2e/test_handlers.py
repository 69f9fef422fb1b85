"""A real server with handlers: it stops without losing what it accepted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from tests.artifacts import write_artifact
from tests.e2e.server import Server, running
from tests.handlers import asks, write_handler

SOURCE = """
import asyncio
import torchlane

class Slow(torchlane.Handler):
    models = ("double",)

    async def predict(self, request):
        await asyncio.sleep(request.json())
        return await self.call("double", [1, 2])
"""


def test_a_stop_answers_accepted_requests_and_their_calls(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_artifact(models, "double")
    example = asks(0, {"outputs": {"y": [2, 4]}})
    write_handler(models, "slow", 1, SOURCE, [example], ("double",), entry="slow:Slow")

    async def scene(server: Server) -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
            post = asyncio.create_task(client.post("/models/slow/predict", json=1.0))
            await asyncio.sleep(0.4)
            server.signal()
            answer = await post
            assert (answer.status_code, answer.json()) == (200, {"outputs": {"y": [2.0, 4.0]}})

    with running(models, tmp_path / "log", handlers="on", required_models="*") as server:
        asyncio.run(scene(server))
        assert server.exit_code() == 0
