"""A real server with handlers: it stops without losing what it accepted."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import httpx
import pytest

from tests.artifacts import write_artifact
from tests.e2e.server import PLAIN, Server, running
from tests.e2e.test_workers import alive, two_workers, until
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


PROCESSES = """
import os
import torchlane

class Processes(torchlane.Handler):
    async def predict(self, request):
        return {"worker": os.getppid(), "own": os.getpid()} if request.json() else {}
"""


@pytest.mark.soak
def test_each_worker_has_processes_of_its_own(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_handler(models, "processes", 1, PROCESSES, [asks(0, {})], entry="processes:Processes")
    own: dict[int, int] = {}

    def both_answer(server: Server) -> bool:
        """Whether both workers have a process; each connection goes to one of them."""
        own.clear()
        for _ in range(8):
            with contextlib.suppress(httpx.TransportError):  # of the worker that is killed
                answer = httpx.post(f"{server.url}/predict", json=1, verify=PLAIN)
                if answer.status_code == 200:
                    own[answer.json()["worker"]] = answer.json()["own"]
        return len(own) == 2

    with two_workers(models, tmp_path / "log", handlers="on") as server:
        until(lambda: both_answer(server), "only one worker answers")
        until(
            lambda: (
                'torchlane_model_replicas{model="processes",version="1"} 2.0' in server.scrape()
            ),
            "the metrics do not have the processes of both workers",
        )
        (worker, process), (other, its_process) = own.items()
        os.kill(worker, signal.SIGKILL)
        until(lambda: not alive(process), "the process outlives its worker")
        until(lambda: both_answer(server), "the new worker has no process")
        assert worker not in own
        assert own[other] == its_process
        server.signal()
        assert server.exit_code() == 0
        until(lambda: not any(map(alive, own.values())), "a process outlives its server")


STREAM = """
import asyncio
import torchlane

class Stream(torchlane.Handler):
    async def predict(self, request):
        for number in range(request.json()):
            yield number
            await asyncio.sleep(0.1)
"""


def test_a_stop_lets_streams_end(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_handler(models, "stream", 1, STREAM, [asks(1, [0])], entry="stream:Stream", streams=True)

    async def scene(server: Server) -> None:
        async with (
            httpx.AsyncClient(base_url=server.url, timeout=30, verify=PLAIN) as client,
            client.stream("POST", "/predict", json=10) as answer,
        ):
            lines = answer.aiter_lines()
            assert await anext(lines) == "data: 0"
            server.signal()
            rest = [line async for line in lines if line]
            assert rest == [f"data: {number}" for number in range(1, 10)]

    with running(models, tmp_path / "log", handlers="on") as server:
        asyncio.run(scene(server))
        assert server.exit_code() == 0


def test_a_stop_ends_streams_that_outlast_it(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_handler(models, "stream", 1, STREAM, [asks(1, [0])], entry="stream:Stream", streams=True)

    async def scene(server: Server) -> None:
        async with (
            httpx.AsyncClient(base_url=server.url, timeout=30, verify=PLAIN) as client,
            client.stream("POST", "/predict", json=10_000) as answer,
        ):
            lines = answer.aiter_lines()
            assert await anext(lines) == "data: 0"
            server.signal()
            told: list[str] = []

            async def read() -> None:
                async for line in lines:
                    told.append(line)

            with pytest.raises(httpx.RemoteProtocolError):
                await read()
            assert "event: error" in told
            assert '"code":"shutting_down"' in told[-2] + told[-1]

    with running(models, tmp_path / "log", handlers="on", drain_s="1") as server:
        asyncio.run(scene(server))
        assert server.exit_code() == 0
