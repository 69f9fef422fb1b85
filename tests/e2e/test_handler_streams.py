"""Many streams of a real server: its memory and that of the handler's process stay as they are."""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.artifacts import write_artifact
from tests.e2e.server import PLAIN, Server, resident_bytes, running
from tests.handlers import asks, write_handler

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]
STREAMS, WARMED, AT_ONCE = 10_000, 2_000, 50
MOST_MORE_BYTES = 8 << 20  # of a heap that is fragmented otherwise; 1 KiB a stream is above it
SOURCE = """
import ctypes
import gc
import os
import torchlane

class Steps(torchlane.Handler):
    models = ("double",)

    async def predict(self, request):
        asked = request.json()
        if asked is None:
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)
            yield os.getpid()
        for number in range(asked or 0):
            answer = await self.call("double", [number % 50, 1])
            yield answer["outputs"]["y"][0]
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    write_artifact(folder, "double")
    example = asks(2, [0, 2])
    write_handler(
        *(folder, "steps", 1, SOURCE, [example], ("double",)),
        entry="steps:Steps",
        streams=True,
        concurrency=AT_ONCE + 1,
    )
    return folder


async def stream(client: httpx.AsyncClient, steps: int) -> list[float]:
    """Read a stream; returns when each item came."""
    times, items = [], []
    async with client.stream("POST", "/models/steps/predict", json=steps) as answer:
        async for line in answer.aiter_lines():
            if line:
                times.append(time.perf_counter())
                items.append(json.loads(line.removeprefix("data: ")))
    assert items == [2 * (number % 50) for number in range(steps)]
    return times


def tell(text: str) -> None:
    """Report figures, shown by pytest -s."""
    sys.stdout.write(f"{text}\n")


def of(server: Server) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=AT_ONCE)
    return httpx.AsyncClient(base_url=server.url, timeout=60, verify=PLAIN, limits=limits)


async def memory(client: httpx.AsyncClient, server: Server) -> tuple[int, int]:
    """Resident bytes of the server, and of the handler's process."""
    accept = {"Accept": "application/json"}
    answer = await client.post("/models/steps/predict", content=b"null", headers=accept)
    return resident_bytes(server.process.pid), resident_bytes(answer.json()[0])


def test_memory_is_flat_over_ten_thousand_streams(models: Path, tmp_path: Path) -> None:
    async def scene(server: Server) -> None:
        async with of(server) as client:
            left = itertools.count()

            async def read(most: int) -> None:
                while next(left) < most:
                    await stream(client, 3)

            await asyncio.gather(*(read(WARMED) for _ in range(AT_ONCE)))
            before = await memory(client, server)
            left = itertools.count()
            began = time.perf_counter()
            await asyncio.gather(*(read(STREAMS) for _ in range(AT_ONCE)))
            seconds = time.perf_counter() - began
            after = await memory(client, server)
        tell(f"\n{STREAMS} streams in {seconds:.0f} s; server, handler: {before} -> {after} bytes")
        for now, then in zip(after, before, strict=True):
            assert now - then < MOST_MORE_BYTES

    with running(models, tmp_path / "log", handlers="on", required_models="*") as server:
        asyncio.run(scene(server))


def test_fifty_streams_share_batches(models: Path, tmp_path: Path) -> None:
    """Prints how fast; that they share batches is what it checks."""

    async def scene(server: Server) -> None:
        async with of(server) as client:
            for count in (1, AT_ONCE):
                batches = server.metric("torchlane_compute_seconds_count")
                began = time.perf_counter()
                times = await asyncio.gather(*(stream(client, 100) for _ in range(count)))
                rate = 100 * count / (time.perf_counter() - began)
                batches = server.metric("torchlane_compute_seconds_count") - batches
                gaps = [b - a for each in times for a, b in itertools.pairwise(each)]
                p50, p99 = (statistics.quantiles(gaps, n=100)[at] * 1e3 for at in (49, 98))
                tell(
                    f"\n{count} streams: {rate:.0f} steps/s, {batches:.0f} batches; between items "
                    f"p50 {p50:.2f} ms, p99 {p99:.2f} ms"
                )
            assert batches < 100 * AT_ONCE / 4  # the model's batches are of several streams

    settings = {"handlers": "on", "required_models": "*", "cache_bytes": "0"}
    with running(models, tmp_path / "log", **settings) as server:
        asyncio.run(scene(server))
